"""A rehearsal of some microbatches represents a step; expert exchanges, and float8."""

from functools import cache

import pytest

from components.dryrun import rank_roles, rehearsal
from components.dryrun.rank_roles import check_messages
from components.dryrun.rehearsal import StepTrace, run_two_steps
from components.dryrun.trackers import CollectiveKind
from components.errors import RecipeError
from components.versions import TORCH
from tests.recipes.compositions import compose

WORDS = (
    *("teuken7b", "scale=parity", "model.num_layers=2", "cluster.ranks=2"),
    *("parallelism.pipeline=2", "parallelism.schedule=1f1b", "cluster.device=cpu"),
    *("parallelism.microbatch_sequences=1", "budget.sequence_length=64"),
    *("budget.global_batch_tokens=512", "budget.total_tokens=5120"),
)
ALL = 8


@pytest.fixture(scope="module")
def some_and_all() -> tuple[StepTrace, StepTrace]:
    recipe = compose(*WORDS)
    try:
        check_messages(recipe)
    except RecipeError as refused:
        pytest.skip(str(refused))
    some = run_two_steps(recipe, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "microbatches_to_rehearse", lambda _: ALL)
        return some, run_two_steps(recipe, 1)


@pytest.mark.long
def test_the_rehearsed_microbatches_reach_the_peak_of_all(some_and_all):
    some, every = some_and_all
    assert (some.rehearsed, every.rehearsed) == (3, ALL)
    # All tokens of the step are in memory from its start.
    tokens = 8 * (ALL - 3) * 65
    for phase, peak in every.peaks.items():
        expected = some.peaks[phase].total_bytes + tokens
        assert peak.total_bytes == pytest.approx(expected, rel=0.005)


def test_extrapolated_counts_equal_the_counts_of_all_microbatches(some_and_all):
    some, every = some_and_all
    assert some.calls == every.calls
    assert some.bytes == every.bytes
    assert some.flops == every.flops
    assert {kind.operation for kind in every.calls} >= {"send", "receive", "all_reduce"}


def test_a_pipeline_is_refused_on_releases_that_cannot_rehearse_it(monkeypatch):
    recipe = compose(*WORDS)
    installed = {TORCH: "2.10.0a0+git449b176"}
    monkeypatch.setattr(rank_roles, "read_installed_versions", lambda: installed)
    with pytest.raises(RecipeError, match=r"parallelism\.pipeline: 2 stages.*2\.10\.0a0"):
        check_messages(recipe)
    installed[TORCH] = "2.11.0+cu130"
    check_messages(recipe)


EXPERT_WORDS = (
    *("mula20b_a2b", "scale=mini", "cluster.ranks=3", "cluster.device=cpu"),
    *("model.mlp.num_experts=6", "model.mlp.top_k=2", "parallelism.expert=3"),
    *("parallelism.expert_dispatch=all_to_all", "parallelism.recompute=none"),
    *("budget.sequence_length=64", "budget.global_batch_tokens=192"),
    "budget.total_tokens=1920",
)


@cache
def rehearsed(overlap: int, *more: str) -> StepTrace:
    words = (*EXPERT_WORDS, f"parallelism.expert_overlap={overlap}", *more)
    return run_two_steps(compose(*words), 0)


def exchanges(found: StepTrace, dtype: str) -> tuple[int, int]:
    kind = CollectiveKind("expert", "all_to_all", dtype, 3)
    return found.calls[kind], found.bytes[kind]


@pytest.mark.long
@pytest.mark.parametrize("overlap", [1, 3])
def test_overlapped_parts_send_the_same_bytes_in_more_messages(overlap: int) -> None:
    """128 pairs of token and expert do not divide evenly over three ranks."""
    shape, found = compose(*EXPERT_WORDS).decoder_spec, rehearsed(overlap)
    layers = shape.num_layers
    calls, sent = exchanges(found, "float32")
    ways, pairs = 4, 64 * 2  # to the experts and back, forward and backward
    assert calls == layers * overlap * (ways + 2)  # weights are sent, and gradients received
    assert sent == layers * pairs * (ways * shape.dim + 2) * 4
    assert found.flops == rehearsed(1).flops
    assert exchanges(found, "int64") == (layers, layers * overlap * 6 * 8)


@pytest.mark.long
def test_a_bounded_exchange_sends_padding() -> None:
    """Every rank sends 64 rows, 1.5 times a third of 128, to each rank."""
    bounded = rehearsed(1, "parallelism.expert_capacity_factor=1.5")
    shape = compose(*EXPERT_WORDS).decoder_spec
    layers = shape.num_layers
    calls, sent = exchanges(bounded, "float32")
    assert calls == layers * 6
    assert sent == layers * 3 * 64 * (4 * shape.dim + 2) * 4
    assert exchanges(bounded, "int64") == (layers, layers * 6 * 8)


FLOAT8_WORDS = (
    *("teuken7b", "scale=mini", "model.num_layers=2", "cluster.device=cuda"),
    *("parallelism.microbatch_sequences=1", "budget.sequence_length=64"),
    *("budget.global_batch_tokens=256", "budget.total_tokens=2560", "model.mlp.ffn_dim=832"),
    "precision.weights=float32",  # as with float8
)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method.")  # of Triton's compiler
def test_float8_saves_the_casts_of_weights_and_keeps_the_products() -> None:
    recipes = [
        compose(*FLOAT8_WORDS, f"precision.compute={dtype}") for dtype in ("float8", "bfloat16")
    ]
    float8, bfloat16 = (run_two_steps(recipe, 0) for recipe in recipes)
    assert float8.flops == bfloat16.flops
    shape = recipes[0].decoder_spec
    maps = shape.attention.count_parameters(shape.dim) + shape.mlp.expert_parameters(shape.dim)
    casts = [trace.peaks["forward"].by_category["casts"] for trace in (float8, bfloat16)]
    assert casts[1] - casts[0] == 2 * shape.num_layers * maps
