"""Attention's kernels, each against the formula in double precision, and who is chosen."""

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import product
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from components.attention_backends import (
    BACKENDS,
    AttentionCase,
    Backend,
    check_order,
    select_backends,
)
from components.distributed.context import SequencePart
from components.errors import RecipeError
from components.model import attention_kernels
from components.model.attention import AttentionContext, AttentionCore
from components.model.masks import BLOCK, CausalMask
from components.model.positions import PositionEncoding, alibi_slopes
from tests.components.model.flex_on_cpu import flex_on_cpu
from tests.components.model.mixers.builders import build_scope
from tests.components.model.operators_seen import Operators

LENGTH, HEADS, WIDTH = 150, 4, 16  # more than a block of the mask
CPU = torch.device("cpu")


def by_formula(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scope: AttentionContext,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute softmax(q k / sqrt(width) - slope (i - j)) over the visible pairs."""
    slopes, numbers = scope.encoding.slopes, DOCUMENTS
    key, value = (each.repeat_interleave(HEADS // each.shape[1], 1) for each in (key, value))
    scores = query @ key.mT / math.sqrt(WIDTH)
    place = torch.arange(LENGTH)
    behind = place[:, None] - place
    if slopes is not None:
        scores = scores - slopes[:, None, None] * behind
    hidden = (behind < 0)[None]
    if scope.mask.starts is not None:
        hidden = hidden | (numbers[:, :, None] != numbers[:, None])
    scores = scores.masked_fill(hidden[:, None], -math.inf)
    if sinks is not None:
        column = sinks[:, None, None].expand(len(scores), -1, LENGTH, 1)
        scores = torch.cat((scores, column), -1)
    return scores.softmax(-1)[..., :LENGTH] @ value


DOCUMENTS = torch.stack([
    torch.arange(3).repeat_interleave(torch.tensor(each))
    for each in ([3, 137, 10], [128, 21, 1])
])


def scope_of(slopes: bool, documents: bool) -> AttentionContext:
    falls = torch.tensor(alibi_slopes(HEADS)).double() if slopes else None
    encoding = PositionEncoding(position_ids=torch.arange(LENGTH), slopes=falls)
    return AttentionContext(encoding=encoding, documents=DOCUMENTS if documents else None)


def heads_of(kv_heads: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(2, count, LENGTH, WIDTH, generator=generator, dtype=torch.float64)
        for count in (HEADS, kv_heads, kv_heads)
    ]


def with_gradients(call: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    leaves = [each.clone().requires_grad_() for each in given]
    mixed = call(*leaves)
    upstream = torch.linspace(-1, 1, mixed.numel(), dtype=mixed.dtype).view_as(mixed)
    return [mixed, *torch.autograd.grad(mixed, leaves, upstream)]


@pytest.fixture
def flex() -> Iterator[None]:
    with flex_on_cpu():
        yield


CASES = list(product((4, 2, 1), (False, True), (False, True)))


SINKS = torch.tensor([-1.0, 0.5, 2.0, 6.0]).double()


@pytest.mark.quick(
    *(f"{heads}-{x}-{y}-{z}-cpu" for heads, x, y in CASES for z in ("no sinks", "sinks")),
    *("4-False-False-no sinks-flex", "2-True-True-no sinks-flex", "1-False-True-sinks-flex"),
)
@pytest.mark.parametrize("flex", [False, True], ids=["cpu", "flex"])
@pytest.mark.parametrize("sinks", [None, SINKS], ids=["no sinks", "sinks"])
@pytest.mark.parametrize(("kv_heads", "slopes", "documents"), CASES)
def test_kernels_compute_the_formula_and_its_gradients(
    kv_heads: int, slopes: bool, documents: bool, sinks: Tensor | None, flex: bool
) -> None:
    scope, given = scope_of(slopes, documents), heads_of(kv_heads)
    given += [] if sinks is None else [sinks]
    core = AttentionCore(dropout=0.0, backends=BACKENDS, has_sinks=sinks is not None)

    def attend(query: Tensor, key: Tensor, value: Tensor, *sink: Tensor) -> Tensor:
        named = {"sinks": sink[0]} if sink else {}
        return cast("Tensor", core(query, key, value, scope, first_head=0, **named))

    with flex_on_cpu() if flex else nullcontext():
        found = with_gradients(attend, given)
    expected = with_gradients(lambda q, k, v, *sink: by_formula(q, k, v, scope, *sink), given)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("kernel", ["flash", "math"])
def test_torch_uses_only_the_listed_kernels(kernel: Backend) -> None:
    scope, given = scope_of(False, False), heads_of(2)
    with Operators(["aten."]) as seen:
        mixed = attention_kernels.scaled_dot_product(
            *given, kernels=[kernel, "flex"], mask=None, dropout=0.0
        )
    expected = by_formula(given[0], given[1], given[2], scope)
    torch.testing.assert_close(mixed, expected, rtol=1e-10, atol=1e-11)
    assert any("flash" in name for name in seen.counts) == (kernel == "flash")


@pytest.mark.quick("2-True-True-None")
@pytest.mark.usefixtures("flex")
@pytest.mark.parametrize(
    ("kv_heads", "slopes", "documents", "sinks"),
    [(2, True, True, None), (4, True, False, None), (2, False, True, SINKS)],
)
def test_flex_applies_dropout_after_the_softmax(kv_heads, slopes, documents, sinks):
    """The values are the unit matrix, so the output shows the dropped weights."""
    scope, (query, key, value) = scope_of(slopes, documents), heads_of(kv_heads)
    core = AttentionCore(dropout=0.25, backends=BACKENDS)
    unit = torch.eye(LENGTH).double().expand(2, kv_heads, -1, -1)

    def dropped(*each: Tensor) -> Tensor:
        torch.manual_seed(5)
        return cast("Tensor", core(*each, scope, first_head=0, sinks=sinks))

    weights = dropped(query, key, unit)
    kept = weights != 0
    whole = by_formula(query, key, unit, scope, sinks)
    torch.testing.assert_close(weights, whole * kept / 0.75, rtol=1e-9, atol=1e-12)
    visible = whole > 1e-30
    assert kept.sum() / visible.sum() == pytest.approx(0.75, abs=0.01)

    def masked(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixing = by_formula(query, key, unit, scope, sinks) * kept / 0.75
        return mixing @ value.repeat_interleave(HEADS // kv_heads, 1)

    found = with_gradients(dropped, [query, key, value])
    expected = with_gradients(masked, [query, key, value])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(
        core.eval()(query, key, value, scope, first_head=0, sinks=sinks),
        by_formula(query, key, value, scope, sinks),
    )


@pytest.mark.usefixtures("flex")
def test_both_passes_of_flex_dropout_get_a_gradient(monkeypatch):
    """Torch's GPU code multiplies by this gradient without checking for None."""
    upstream: list[Tensor | None] = []
    importlib.import_module("torch.utils.flop_counter")  # it imports the operator
    operators = importlib.import_module("torch._higher_order_ops.flex_attention")
    plain = operators.flex_attention_backward

    def spied(*given: Any) -> Any:
        upstream.append(given[5])
        return plain(*given)

    monkeypatch.setattr(operators, "flex_attention_backward", spied)
    core, scope = AttentionCore(dropout=0.25, backends=BACKENDS), scope_of(True, False)
    with_gradients(lambda *each: core(*each, scope, first_head=0), heads_of(4))
    assert len(upstream) == 2
    assert all(isinstance(one, Tensor) for one in upstream)


@pytest.mark.usefixtures("flex")
def test_dropout_of_flex_differs_by_row_head_and_pass() -> None:
    core = AttentionCore(dropout=0.5, backends=BACKENDS)
    zeros, unit = torch.zeros(2, 2, LENGTH, WIDTH), torch.eye(LENGTH).expand(2, 2, -1, -1)
    scope = build_scope(length=LENGTH)
    passes = [core(zeros, zeros, unit, scope, first_head=0) != 0 for _ in range(2)]
    kept = torch.stack(passes).flatten(0, 2)[:, LENGTH // 2 :]  # rows long enough to differ
    rows = kept[:, :, : LENGTH // 2].flatten(0, 1).double() - 0.5
    alike = (rows @ rows.T).fill_diagonal_(0) / rows.shape[1] * 4
    assert alike.abs().max() < 0.75
    assert alike.mean().abs() < 1e-3
    # Neighboring keys are independent, too.
    assert (rows[:, 1:] * rows[:, :-1]).mean().abs() * 4 < 0.02


# Lengths of documents in a row.
PARTS = st.lists(st.integers(1, 200), min_size=1, max_size=6)


@settings(deadline=None, max_examples=40)
@given(rows=st.lists(PARTS, min_size=1, max_size=3), ranks=st.integers(1, 3), data=st.data())
def test_blocks_equal_torchs_exhaustive_search(rows, ranks, data):
    chunks = 1 if ranks == 1 else 2 * ranks
    length = -(-max(map(sum, rows)) // chunks) * chunks
    documents = torch.stack([_numbered(row, length) for row in rows])
    rank = data.draw(st.integers(0, ranks - 1))
    places = torch.arange(length)
    if ranks > 1:
        places = SequencePart(rank=rank, ranks=ranks).position_ids(length // ranks, CPU)
    mask = CausalMask(position_ids=places, documents=documents)
    behind = places[:, None] - torch.arange(length)
    visible = (documents[:, places, None] == documents[:, None]) & (behind >= 0)
    if window := data.draw(st.none() | st.integers(1, 300)):
        mask, visible = mask.for_window(window), visible & (behind < window)
    seen = mask.build_dense_mask(slice(None), length)[:, 0]
    assert torch.equal(seen, visible)

    blocks = mask.build_block_mask(length)
    expected = create_block_mask(
        lambda b, h, q, k: seen[b, q, k], len(rows), None, len(places), length, "cpu"
    )
    assert blocks.shape == expected.shape
    assert blocks.mask_mod is not None
    index = [torch.arange(count).view(*shape) for count, shape in _grid(len(rows), seen)]
    assert torch.equal(blocks.mask_mod(index[0], torch.tensor(0), *index[1:]), seen)
    ours, theirs = blocks.to_dense().bool(), expected.to_dense().bool()
    assert torch.equal(_whole(blocks), _whole(expected))
    if ranks == 1 or (length // chunks) % BLOCK == 0:
        assert torch.equal(ours, theirs)
    assert not (theirs & ~ours).any()


def _numbered(lengths: list[int], whole: int) -> Tensor:
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    return torch.cat((numbers, torch.full((whole - len(numbers),), len(lengths))))


def _grid(batch: int, seen: Tensor) -> list[tuple[int, tuple[int, ...]]]:
    return [(batch, (-1, 1, 1)), (seen.shape[1], (1, -1, 1)), (seen.shape[2], (1, 1, -1))]


def _whole(blocks: Any) -> Tensor:
    """Return which blocks are fully visible, (batch, 1, rows, columns)."""
    counts, columns = blocks.full_kv_num_blocks, blocks.full_kv_indices
    taken = torch.arange(columns.shape[-1]) < counts[..., None]
    found = torch.zeros_like(columns, dtype=torch.bool)
    return found.scatter(-1, columns.long(), taken)


CASE = AttentionCase("cuda", "bfloat16", 128, grouped=False, dropout=False, mask="causal")
case = CASE._replace


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (case(), "cudnn"),
        (case(head_dim=192), "flash"),
        (case(grouped=True, dropout=True, mask="offset"), "flash"),
        (case(dtype="float32"), "efficient"),
        (case(dtype="float32", grouped=True), "flex"),
        (case(head_dim=512), "efficient"),
        (case(mask="structured"), "flex"),
        (case(mask="structured", dropout=True, grouped=True), "flex"),
        (case(sinks=True), "flex"),
        (case(device="xpu"), "overrideable"),
        (case(device="xpu", grouped=True), "flex"),
        (case(device="xpu", dropout=True), "flex"),
        (case(device="xpu", mask="offset"), "flex"),
    ],
)
def test_the_first_capable_backend_is_selected(wanted: AttentionCase, found: str) -> None:
    order: Any = ("cudnn", "flash", "efficient", "overrideable", "flex")
    assert select_backends(order, wanted)[0] == found


def test_the_order_decides_between_capable_backends() -> None:
    assert select_backends(("flash", "cudnn"), case())[0] == "flash"
    assert select_backends(("flex", "flash"), case())[0] == "flex"
    assert select_backends(("flex", "math"), case(dtype="float64")) == ("math",)


@pytest.mark.parametrize("device", ["cpu", "meta", "auto"])
def test_on_a_cpu_torch_chooses(device: str) -> None:
    assert select_backends(("cudnn",), case(device=device, mask="structured")) == ()


@pytest.mark.parametrize(
    ("order", "wanted", "message"),
    [
        (
            ("flash", "efficient"),
            case(mask="structured"),
            r"\[flash, efficient\] has no kernel for bfloat16 attention with documents, slopes "
            r"or windows, heads of 128, on cuda\n  add flex",
        ),
        (
            ("flash",),
            case(device="xpu", grouped=True, dropout=True),
            r"in groups with dropout, heads of 128, on xpu\n  add flex or math",
        ),
        (
            ("cudnn", "math"),
            case(sinks=True, dropout=True),
            r"with dropout with sinks, heads of 128, on cuda\n  add flex$",
        ),
        (
            ("flash", "flex"),
            case(dtype="float64", mask="structured"),
            r"float64 attention .*\n  use precision.compute=bfloat16",
        ),
    ],
)
def test_an_order_without_a_kernel_is_refused_with_alternatives(order, wanted, message):
    with pytest.raises(RecipeError, match=message):
        select_backends(order, wanted)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([], r"model.attention.backends: the list is empty\n  list some of flash, "),
        (["flash", "sdpa"], r"model.attention.backends\[1\]: unknown 'sdpa'\n  use some of"),
        (["flex", "flex"], r"model.attention.backends: flex is listed twice"),
    ],
)
def test_an_order_names_each_backend_once(order: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        check_order(order)
    with pytest.raises(RecipeError, match=message):
        AttentionCore(dropout=0.0, backends=order)  # type: ignore[arg-type]  # it is wrong


def test_kernels_are_left_out_on_older_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for generation, lacking in ((7, ("flash", "cudnn")), (8, ("cudnn",)), (9, ())):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda at=generation: (at, 0))
        assert attention_kernels.lacking("cuda") == lacking
        assert attention_kernels.lacking("xpu") == ()


def test_no_dense_mask_is_built_on_a_gpu() -> None:
    encoding = PositionEncoding(position_ids=torch.empty(3, device="meta"))
    scope = AttentionContext(encoding=encoding, documents=None)
    with (
        patch("components.model.attention.ACCELERATORS", ("meta",)),
        pytest.raises(AssertionError, match="length times length"),
    ):
        scope.build_dense_mask((0, 1), torch.float32)
