"""Lengths that context ranks cannot cut, and what they cannot compute, are refused at once."""

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.layout import deal_ranks
from components.config.rules.layout import sequence_divisor
from components.config.user_overrides import UserOverrides
from components.errors import RecipeError
from tests.components.config.conftest import Compose

LENGTH_102 = ("budget.sequence_length=102", "budget.global_batch_tokens=1_632")
CONTEXT_2 = ("cluster.ranks=2", "parallelism.context=2")


@pytest.mark.parametrize(
    ("words", "problem", "remedy"),
    [
        (
            (*LENGTH_102, *CONTEXT_2),
            "budget.sequence_length: 102 is not a multiple of two chunks for each of "
            "parallelism.context=2 ranks, 4",
            "nearest valid values: 100 and 104",
        ),
        (
            (
                "budget.sequence_length=6",
                "budget.global_batch_tokens=96",
                "cluster.ranks=4",
                "parallelism.context=4",
            ),
            "budget.sequence_length: 6 is not a multiple of two chunks for each of "
            "parallelism.context=4 ranks, 8",
            "nearest valid value: 8",
        ),
        (
            (
                "budget.sequence_length=108",
                "budget.global_batch_tokens=1_728",
                "cluster.ranks=8",
                "parallelism.context=2",
                "parallelism.tensor=4",
            ),
            "budget.sequence_length: 108 is not a multiple of two chunks for each of "
            "parallelism.context=2 ranks, 8",
            "nearest valid values: 104 and 112",
        ),
    ],
)
def test_what_context_ranks_cannot_share_is_refused(
    compose: Compose, words: tuple[str, ...], problem: str, remedy: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        compose(*words)
    assert str(caught.value) == f"{problem}\n  {remedy}"


def test_too_few_learned_positions_are_refused_though_each_rank_has_enough() -> None:
    words = (
        "recipe=gpt3b6",
        *CONTEXT_2,
        "parallelism.engine=mesh",
        "model.positions.num_positions=128",
    )
    with pytest.raises(RecipeError) as caught:
        compose_recipe(read_point(words))
    assert str(caught.value) == (
        "model.positions.num_positions: 128 is less than budget.sequence_length 256\n"
        "  write model.positions.num_positions=256 or more"
    )


@pytest.mark.parametrize(
    "words",
    [
        CONTEXT_2,
        ("cluster.ranks=4", "parallelism.context=4"),
        ("cluster.ranks=8", "parallelism.context=2", "parallelism.tensor=4"),
        # Whole on each tensor rank: two chunks for each of two ranks are all that is cut.
        (
            "budget.sequence_length=108",
            "budget.global_batch_tokens=1_728",
            "cluster.ranks=8",
            "parallelism.context=2",
            "parallelism.tensor=4",
            "parallelism.sequence_parallel=false",
        ),
    ],
)
def test_what_divides_is_taken(compose: Compose, words: tuple[str, ...]) -> None:
    named = [word.partition("parallelism.context=")[2] for word in words]
    assert compose(*words).parallelism.context == max(int(value or 1) for value in named)


@pytest.mark.parametrize(
    ("context", "slices", "divisor"), [(1, 1, 1), (1, 3, 3), (2, 1, 4), (2, 2, 4), (3, 4, 12)]
)
def test_a_part_is_two_chunks_and_whole_slices(context: int, slices: int, divisor: int) -> None:
    assert sequence_divisor(context=context, slices=slices) == divisor
    part = divisor / context
    assert part % slices == 0
    assert context == 1 or part % 2 == 0


@pytest.mark.parametrize(("length", "context"), [(16, 8), (12, 2), (6, 1)])
def test_a_miniature_deals_context_ranks_only_where_the_sequence_divides(
    compose: Compose, length: int, context: int
) -> None:
    tree = compose().model_dump(mode="json")
    tree["parallelism"] |= {"tensor": 2, "pipeline": 1, "context": 8}
    tree["budget"]["sequence_length"] = length
    tree["cluster"]["ranks"] = 128
    deal_ranks(tree, 4, UserOverrides([]))
    dealt = tree["parallelism"]
    assert (dealt["tensor"], dealt["context"]) == (2, context)
    assert dealt["data"] * dealt["tensor"] * dealt["context"] == 128
