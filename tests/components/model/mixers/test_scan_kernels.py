"""Kernels of other libraries against our scans, and their selection.

The kernels run on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1). Without both, a scan
of ours has the kernel's interface, which tests only the conversion of tensors.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from components.errors import RecipeError
from components.model.mixers import mixer, scan_kernels
from components.model.mixers.scan import Scan, scan_delta_rule, scan_linear, scan_mamba2
from tests.components.model.mixers.builders import DIM, SPECS, build_mixer, build_scope
from tests.components.model.mixers.test_scan import draw_tokens

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED or not torch.cuda.is_available() else "cuda"
DTYPE, TOLERANCE = (torch.bfloat16, 5e-2) if DEVICE == "cuda" else (torch.float32, 1e-5)
CHUNK = 32
FLA: dict[str, Scan] = {
    "gated_delta_rule": scan_delta_rule,
    "kda": scan_delta_rule,
    "simple_gla": scan_linear,
}
CASES: dict[str, tuple[Scan, Scan, int]] = {  # of the library, ours, decays of a head
    "fla-delta": (scan_kernels.scan_delta_in_fla, scan_delta_rule, 1),
    "fla-kimi": (scan_kernels.scan_channels_in_fla, scan_delta_rule, 8),
    "fla-mamba": (scan_kernels.scan_mamba2_in_fla, scan_mamba2, 1),
    "mamba_ssm-mamba": (scan_kernels.scan_in_mamba, scan_mamba2, 1),
}


@pytest.fixture
def libraries(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip a test without its library; prepare the interpreter, which has no GPU to time."""
    library = request.node.callspec.params["name"].partition("-")[0]
    if not INTERPRETED and DEVICE == "cpu":
        pytest.skip("needs a GPU, or TRITON_INTERPRET=1")
    pytest.importorskip(library)
    if INTERPRETED:
        tuner = pytest.importorskip("triton.runtime.autotuner").Autotuner
        gpu = SimpleNamespace(multi_processor_count=1)
        monkeypatch.setattr(tuner, "_bench", lambda *_, **__: (1.0, 1.0, 1.0))
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)


def call_ours(
    scan: Scan, tokens: Sequence[Tensor], cu_seqlens: Tensor | None, given: Any
) -> Any:
    """Scan each document alone, with tensors in the layout of flash-linear-attention."""
    query, key, value, decay, *step = tokens
    bounds = [0, query.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    repeats = value.shape[2] // query.shape[2]
    wide = [tensor.repeat_interleave(repeats, 2) for tensor in (query, key)]
    wide += [value, decay if decay.dim() == 4 else decay[..., None]]
    wide += [size[..., None] for size in step]
    rows = []
    for number, (first, last) in enumerate(pairwise(bounds)):
        row = [tensor[:, first:last].movedim(1, 2)[:, :, None] for tensor in wide]
        state = given["initial_state"]
        if state is not None:
            state = state[:, :, None] if cu_seqlens is None else state[number, :, None][None]
        rows.append(scan(*row, resets=None, chunk=CHUNK, state=state))
    outputs = torch.cat([outputs[:, :, 0].movedim(1, 2) for outputs, _ in rows], 1)
    return outputs, torch.cat([state[:, :, 0] for _, state in rows])


def import_ours(name: str) -> Any:
    """Return a module with our scan by the name of a kernel."""
    name = name.removeprefix("fla.ops.")

    def kernel(*tokens: Tensor, cu_seqlens: Tensor | None, **given: Any) -> Any:
        assert given["scale"] == 1.0
        assert given["output_final_state"]
        return call_ours(FLA[name], tokens, cu_seqlens, given)

    return SimpleNamespace(**{f"chunk_{name}": kernel})


def draw(scan: Scan, length: int, channels: int) -> list[Tensor]:
    """Return queries, keys, values, and what else a scan reads: decays and step sizes."""
    heads = 2 if channels == 1 else 1
    *tokens, decay = draw_tokens(length, heads=heads, channels=channels)
    step = 2 * torch.rand(*decay.shape[:-1], 1, dtype=decay.dtype)
    rate = -2 * torch.rand(3, heads, 1, 1, dtype=decay.dtype)
    others = [step, rate] if scan is scan_mamba2 else [decay, step]
    return [tensor.requires_grad_() for tensor in (*tokens, *others)]


def scan_all(
    scan: Scan, inputs: list[Tensor], resets: Tensor | None, dtype: torch.dtype
) -> list[Tensor]:
    """Return outputs, last states, and the gradients of a drawn combination of both."""
    *tokens, state = (tensor.to(DEVICE, dtype) for tensor in inputs)
    tokens[4] = tokens[4].expand(*tokens[2].shape[:-1], 1)
    resets = None if resets is None else resets.to(DEVICE)
    found = scan(*tokens, resets=resets, chunk=CHUNK, state=state)
    wide = [tensor.to("cpu", torch.float64) for tensor in found]
    torch.manual_seed(1)
    weighted = [(tensor * torch.randn(tensor.shape)).sum() for tensor in wide]
    return [*wide, *torch.autograd.grad(sum(weighted, torch.zeros(())), inputs)]


def assert_scans_agree(name: str, documents: bool) -> None:
    kernel, ours, channels = CASES[name]
    inputs = draw(ours, 100, channels)
    inputs.append(torch.randn(2, *inputs[2].shape[1:3], 8, 6, dtype=torch.float64))
    inputs[-1].requires_grad_()
    resets = None
    if documents:
        resets = torch.zeros(2, 100, dtype=torch.bool)
        resets[0, [0, 30, 31, 64]] = resets[1, [7, 99]] = True
    found = scan_all(partial(kernel, dtype=DTYPE), inputs, resets, torch.float32)
    expected = scan_all(ours, inputs, resets, torch.float64)
    for theirs, right in zip(found, expected, strict=True):
        assert (theirs - right).norm() <= TOLERANCE * right.norm()


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_librarys_kernel_equals_our_scan(name: str, documents: bool, libraries: None) -> None:
    assert_scans_agree(name, documents)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("fla")])
def test_documents_and_states_are_passed_in_the_librarys_format(name, documents, monkeypatch):
    monkeypatch.setattr(scan_kernels, "import_module", import_ours)
    assert_scans_agree(name, documents)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that treats the CPU as a GPU where some libraries are missing."""

    def change(*missing: str) -> None:
        monkeypatch.setattr("components.scan_backends.ACCELERATORS", ("cpu",))
        monkeypatch.setattr(mixer, "missing_libraries", lambda: missing)

    return change


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.class_name)
def test_a_mixer_calls_the_first_library_that_is_installed(spec, on_gpu, monkeypatch):
    order = ("mamba_ssm", "fla", "torch")
    part = build_mixer(spec.model_copy(update={"scan_backends": order}))
    hidden = torch.randn(1, 150, DIM)
    on_gpu("mamba_ssm")
    called = []

    def call(*tokens: Tensor, dtype: torch.dtype, **given: Any) -> Any:
        called.append(dtype)
        return scans["torch"](*tokens, **given)

    scans = part.scans
    monkeypatch.setattr(part, "scans", {**scans, "fla": call})
    expected = part(hidden, build_scope())
    assert called == []  # float32 has no kernel
    with torch.autocast("cpu", torch.bfloat16):
        found = part(hidden, build_scope())
        on_gpu("mamba_ssm", "fla")
        again = part(hidden, build_scope())
    assert called == [torch.bfloat16]
    assert torch.equal(found, again)
    assert (found - expected).norm() < 0.1 * expected.norm()


def test_a_mixer_without_an_installed_library_is_refused_on_a_gpu(on_gpu):
    part = build_mixer(SPECS[0].model_copy(update={"scan_backends": ("fla",)}))
    hidden = torch.randn(1, 150, DIM, dtype=torch.bfloat16)
    compute = partial(part.to(torch.bfloat16), hidden, build_scope())
    on_gpu("fla")
    message = r"mixers\.\*\.scan_backends: \[fla\]: not installed here: fla\n  install flash-"
    with pytest.raises(RecipeError, match=message):
        compute()


def test_a_mixer_scans_in_torch_on_a_cpu_and_without_values() -> None:
    part = build_mixer(SPECS[2].model_copy(update={"scan_backends": ("mamba_ssm",)}))
    assert part(torch.randn(1, 150, DIM), build_scope()).isfinite().all()
    assert part.select_scan(torch.empty(1, 2, DIM, device="meta")) is scan_mamba2


def test_missing_libraries_are_those_that_cannot_be_imported() -> None:
    found = {"fla": None, "mamba_ssm": object()}
    mixer.missing_libraries.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixer, "find_spec", found.__getitem__)
        assert mixer.missing_libraries() == ("fla",)
    mixer.missing_libraries.cache_clear()
