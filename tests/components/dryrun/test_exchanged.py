"""Rehearsed exchanges between expert ranks: as many numbers, however they are dealt and cut."""

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.dryrun.rehearsal import StepTrace, run_two_steps
from components.dryrun.trackers import CollectiveKind

WORDS = (
    *("recipe=mula20b_a2b", "scale=mini", "cluster.ranks=3", "cluster.device=cpu"),
    *("model.mlp.num_experts=6", "model.mlp.top_k=2", "parallelism.expert=3"),
    *("parallelism.expert_dispatch=all_to_all", "parallelism.recompute=none"),
    *("budget.sequence_length=64", "budget.global_batch_tokens=192"),
    "budget.total_tokens=1920",
)


def rehearsed(overlap: int, *more: str) -> StepTrace:
    words = [*WORDS, f"parallelism.expert_overlap={overlap}", *more]
    return run_two_steps(compose_recipe(read_point(words)), 0)


def exchanges(found: StepTrace, dtype: str) -> tuple[int, int]:
    kind = CollectiveKind("expert", "all_to_all", dtype, 3)
    return found.calls[kind], found.bytes[kind]


@pytest.mark.long
@pytest.mark.parametrize("overlap", [1, 3])
def test_parts_make_more_messages_of_the_same_numbers(overlap: int) -> None:
    """128 pairs of token and expert are not divided evenly by three ranks."""
    recipe = compose_recipe(read_point(list(WORDS)))
    found, layers = rehearsed(overlap), recipe.decoder_spec.num_layers
    calls, sent = exchanges(found, "float32")
    ways, pairs = 4, 64 * 2  # there and back, forward and backward
    assert calls == layers * overlap * (ways + 2)  # weights go, and their gradients come
    assert sent == layers * pairs * (ways * recipe.decoder_spec.dim + 2) * 4
    assert found.flops == rehearsed(1).flops
    assert exchanges(found, "int64") == (layers, layers * overlap * 6 * 8)


@pytest.mark.long
def test_a_bound_sends_its_padding() -> None:
    """Every rank sends 64 rows, 1.5 times a third of 128, to each of the three."""
    recipe = compose_recipe(read_point(list(WORDS)))
    bounded, layers = (
        rehearsed(1, "parallelism.expert_capacity_factor=1.5"),
        recipe.decoder_spec.num_layers,
    )
    calls, sent = exchanges(bounded, "float32")
    assert calls == layers * 6
    assert sent == layers * 3 * 64 * (4 * recipe.decoder_spec.dim + 2) * 4
    assert exchanges(bounded, "int64") == (layers, layers * 6 * 8)
