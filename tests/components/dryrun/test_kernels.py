"""Replacements for the kernels of a GPU in a dry run."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from components.attention_backends import Backend
from components.dryrun.fake_world import device_kernels, even_load, replace_parts
from components.dryrun.trackers import FlopLedger
from components.model import expert_products, softmax
from components.model.attention import AttentionContext, AttentionCore
from components.model.expert_products import Matrices, grouped_products, sorted_products
from components.model.linear import add_product
from components.model.mlp import ACTIVATIONS
from components.model.moe import Mixture
from components.model.positions import PositionEncoding
from tests.components.torch_internals.seen import Seen


@contextmanager
def kept_on(device: str) -> Iterator[dict[int, int]]:
    """Give the bytes that a graph saves by storage, with the kernels of a device."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage._cdata] = storage.size()
        return tensor

    with (
        FakeTensorMode(),
        device_kernels(device),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept),
    ):
        yield sizes


def test_a_fused_norm_saves_its_input_and_one_number_a_vector() -> None:
    with kept_on("cuda") as sizes:
        hidden, weight = torch.empty(3, 5, 64, requires_grad=True), torch.empty(64)
        F.rms_norm(hidden, (64,), weight, 1e-5).sum().backward()
    assert sum(sizes.values()) == 4 * (3 * 5 * 64 + 64 + 3 * 5)
    assert hidden.grad is not None
    assert hidden.grad.shape == hidden.shape


def test_dropout_saves_one_byte_a_number() -> None:
    with kept_on("cuda") as sizes:
        nn.Dropout(0.1)(torch.empty(3, 64, requires_grad=True))
    assert sum(sizes.values()) == 3 * 64


def attend(seen: Seen, device: str, backends: list[Backend], **how: Any) -> None:
    """Run attention with dropout, for which flex has two passes."""
    core = AttentionCore(dropout=0.1, backends=backends)
    with FakeTensorMode(), device_kernels(device), seen:
        heads = torch.empty(2, 4, 16, 8, dtype=torch.bfloat16, requires_grad=True)
        slopes = torch.empty(4) if how.get("slopes") else None
        encoding = PositionEncoding(position_ids=torch.arange(16), slopes=slopes)
        scope = AttentionContext(encoding=encoding, documents=None)
        keys, scope = heads[:, :2], scope.for_window(how.get("window"))
        core(heads, keys, keys, scope, first_head=0).sum().backward()


@pytest.mark.parametrize(
    ("device", "backends", "slopes", "taken"),
    [
        ("cuda", ["flash", "flex"], False, ["flash_attention"]),
        ("cuda", ["flash", "flex"], True, ["flash_attention"] * 2),  # as both passes of flex
        ("xpu", ["flash", "flex"], False, ["flash_attention"] * 2),
        ("cuda", ["math", "flash"], False, []),
    ],
)
def test_attention_uses_the_first_available_kernel(device, backends, slopes, taken):
    attend(seen := Seen(), device, backends, slopes=slopes)
    backward = [f"{name}_backward" for name in taken]
    names = [re.sub(r".*product_|\.default", "", str(name)) for name in seen.overloads]
    assert [name for name in names if "attention" in name] == taken + backward
    assert any("softmax" in name for name in names) == (not taken)


@pytest.mark.parametrize(("window", "passes"), [(15, 2), (16, 1), (None, 1)])
def test_only_windows_that_hide_a_key_need_flex(window, passes):
    attend(seen := Seen(), "cuda", ["flash", "flex"], window=window)
    names = map(str, seen.overloads)
    assert sum(name.endswith("flash_attention.default") for name in names) == passes


def test_patched_functions_are_restored() -> None:
    before = F.rms_norm
    with device_kernels("cuda"):
        assert F.rms_norm is not before
    assert F.rms_norm is before


def products_of_experts(mixture: Mixture, dtype: torch.dtype) -> set[str]:
    """Return the product operators in a forward and backward pass of four experts."""
    with FakeTensorMode(), even_load(), Seen() as seen:
        empty = partial(torch.empty, dtype=dtype, requires_grad=True)
        up, down = empty(4, 16, 8), empty(4, 8, 16)
        matrices = Matrices(None, up, down, ACTIVATIONS["silu"])
        experts = torch.zeros(6, 2, dtype=torch.int64)
        mixture(empty(6, 8), empty(6, 2), experts, matrices).sum().backward()
    return {name for name in map(str, seen.overloads) if "mm" in name}


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str
)
def test_rehearsed_experts_use_the_products_of_the_device(dtype):
    """The real layer chooses its path for a fake tensor on the device."""
    layer = Mixture(path="auto")
    with FakeTensorMode():
        taken = layer._path(torch.empty(6, 8, device="cuda", dtype=dtype))
    parent = nn.ModuleDict({"mixture": layer})
    replace_parts(parent, "cuda")
    rehearsed = products_of_experts(cast("Mixture", parent["mixture"]), dtype)
    grouped, single = "aten._grouped_mm.default", "aten.mm.out"
    kinds = {grouped_products: {grouped}, sorted_products: {single}}
    assert rehearsed & {grouped, single} == kinds[taken]


@pytest.mark.parametrize(("device", "grouped"), [("cuda", True), ("cpu", False)])
def test_experts_use_one_grouped_product_if_a_kernel_exists(device: str, grouped: bool) -> None:
    parent = nn.ModuleDict({"mixture": Mixture(path="auto")})
    replace_parts(parent, device)
    assert (type(parent["mixture"]) is not Mixture) == grouped


def test_a_16_bit_product_is_added_to_a_wide_sum_by_one_counted_kernel() -> None:
    ledger = FlopLedger()
    with FakeTensorMode(), device_kernels("cuda"), ledger:
        left, right = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((9, 4), (4, 5)))
        add_product(torch.empty(9, 5), left, right)
    assert ledger.flops == {"addmm": 2 * 9 * 4 * 5}


def test_a_fake_tensor_does_not_use_the_wide_sum_kernel() -> None:
    """The operator of torch 2.11 would read the dtype as a factor."""
    below = FlopLedger()
    total, sides = torch.empty(9, 5), (torch.empty(9, 4), torch.empty(4, 5))
    with FakeTensorMode(allow_non_fake_inputs=True), below, device_kernels("cuda"):
        add_product(total, *(side.bfloat16() for side in sides))
    assert below.flops == {}


def test_consecutive_experts_get_an_even_load() -> None:
    """Otherwise the number of tokens of an expert is unknown for fake tensors."""
    matrices = Matrices(
        gate=None, up=torch.empty(4, 5, 3), down=torch.empty(4, 3, 5), activation=torch.relu
    )
    ledger = FlopLedger()
    with FakeTensorMode(allow_non_fake_inputs=True), even_load(), ledger:
        chosen = torch.zeros(8, 2, dtype=torch.int64)
        expert_products.mix_in_loop(torch.empty(8, 3), torch.empty(8, 2), chosen, matrices)
    assert ledger.flops == {"mm": 8 * 2 * 2 * (2 * 3 * 5)}


def test_a_host_read_returns_an_even_load_or_the_devices_blocks() -> None:
    small, wide = torch.zeros(4_000, 8), torch.zeros(2**20, 8)
    assert len(list(softmax.split_blocks(small, wide))) == 16
    counts = torch.tensor([3, 5])
    with device_kernels("cuda"), even_load():
        assert len(list(softmax.split_blocks(small, wide))) == 2
        assert expert_products.on_host(counts, even=[4, 4]) == [4, 4]
    assert expert_products.on_host(counts, even=[4, 4]) == [3, 5]
