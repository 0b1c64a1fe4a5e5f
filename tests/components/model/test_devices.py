"""A decoder on devices other than a CPU, mainly Intel GPUs.

No such device is needed, since tensors are fake. A CPU build of torch has no guard for
Intel GPUs (which selects the current device), so the guard of ``meta`` is used, which does
nothing. A backward pass needs the real device; its test uses ``meta`` instead.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode

from components.config.model_spec.positions import AlibiSpec, LearnedSpec
from components.dryrun.fake_world import even_load
from components.model import attention_kernels
from components.model.expert_products import has_grouped_kernel
from tests.components.model.planted_guard import lend_guard
from tests.components.model.routing_terms import auxiliary_terms
from tests.components.model.specs import experts_spec, small_decoder

LENGTH, ROWS = 16, 67
MIXTURE = experts_spec(renormalize=True, auxiliary_loss=0.01, z_loss=0.001)
MODELS: dict[str, dict[str, Any]] = {
    "rotary": {},
    "alibi": {"positions": AlibiSpec()},
    "learned": {"positions": LearnedSpec(num_positions=LENGTH), "dropout": 0.1},
    "experts": {"mlp": MIXTURE},
}


@pytest.fixture
def plain_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use torch's formula, since a CPU build does not know the kernels of an Intel GPU."""

    def flex(query: Tensor, key: Tensor, value: Tensor, **settings: Any) -> Tensor:
        tensors = [*settings["blocks"].as_tuple()]
        on = {one.device.type for one in tensors if isinstance(one, Tensor)}
        assert on == {"xpu"}
        return query * value.sum()

    def formula(query: Tensor, key: Tensor, value: Tensor, **settings: Any) -> Tensor:
        mixed, _ = torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, **settings
        )
        assert isinstance(mixed, Tensor)
        return mixed

    monkeypatch.setattr(F, "scaled_dot_product_attention", formula)
    # Flex would be compiled for a real device; only shapes and devices are tested here.
    monkeypatch.setattr(attention_kernels, "attend_with_flex", flex)


@pytest.fixture
def planted_guard() -> Iterator[None]:
    with lend_guard("xpu"):
        yield


@pytest.mark.usefixtures("plain_attention", "planted_guard")
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "documents"])
@pytest.mark.parametrize("kind", list(MODELS))
def test_a_forward_pass_on_an_xpu_allocates_only_there(kind: str, masked: bool) -> None:
    with FakeTensorMode(), even_load():
        with torch.device("xpu"):  # ends here to reveal tensors without a device
            model = small_decoder(**MODELS[kind])
        rows = torch.randint(ROWS, (2, LENGTH + 1), device="xpu")
        documents = (rows[:, :-1] == 3).int().cumsum(1) if masked else None
        with torch.autocast("xpu", torch.bfloat16):
            loss = model(rows[:, :-1], documents=documents, targets=rows[:, 1:])
            auxiliary, load = auxiliary_terms(model)
    found = {"loss": loss, **load, **dict(model.named_parameters())}
    if kind == "experts":
        found["auxiliary"] = auxiliary
    assert {name: each.device.type for name, each in found.items()} == dict.fromkeys(
        found, "xpu"
    )
    assert loss.dtype == torch.float32


@pytest.fixture
def bfloat16_weights() -> Iterator[None]:
    """Use bfloat16, the dtype of grouped products off the CPU."""
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("bfloat16_weights")
@pytest.mark.parametrize("kind", list(MODELS))
def test_a_backward_pass_off_the_cpu_gives_all_weights_gradients(kind: str) -> None:
    with even_load():  # counts of experts have no values on `meta`
        with torch.device("meta"):
            model = small_decoder(**MODELS[kind])
        rows = torch.randint(ROWS, (2, LENGTH + 1), device="meta")
        loss = model(rows[:, :-1], targets=rows[:, 1:])
        (loss + auxiliary_terms(model)[0].to(loss.device)).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.shape == weight.shape, name


@pytest.mark.parametrize("registered", [False, True])
def test_experts_are_grouped_on_an_xpu_only_where_torch_has_a_kernel(monkeypatch, registered):
    kernels = {("aten::_grouped_mm", "XPU")} if registered else set()
    monkeypatch.setattr(
        torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda *names: names in kernels
    )
    found = [has_grouped_kernel(kind) for kind in ("cpu", "cuda", "xpu", "meta")]
    assert found == [False, True, registered, False]
