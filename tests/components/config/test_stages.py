"""Which rank has which stages, and where gradients of weights come apart."""

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.stages import StagePlacement, Style, splits_backward


@pytest.mark.parametrize(
    ("style", "stages", "of_ranks"),
    [
        ("loop", 1, [(0,), (1,), (2,)]),
        ("loop", 2, [(0, 3), (1, 4), (2, 5)]),
        ("v", 2, [(0, 5), (1, 4), (2, 3)]),
    ],
)
def test_every_stage_is_on_the_rank_that_has_it(
    style: Style, stages: int, of_ranks: list[tuple[int, ...]]
) -> None:
    placement = StagePlacement(pipeline=3, stages_per_rank=stages, style=style)
    assert [placement.stages_of(rank) for rank in range(3)] == of_ranks
    for rank, held in enumerate(of_ranks):
        assert [placement.rank_of(stage) for stage in held] == [rank] * stages
    assert placement.has_both_ends == (style == "v")


def test_one_rank_has_both_ends_whatever_its_schedule() -> None:
    for words in ((), ("parallelism.schedule=zbv", "parallelism.stages_per_rank=2")):
        recipe = compose_recipe(read_point(["recipe=teuken7b", "cluster.ranks=1", *words]))
        assert recipe.stage_placement.num_stages == 1
        assert recipe.stage_placement.has_both_ends


@pytest.mark.parametrize(
    ("words", "splits"),
    [
        (("schedule=zero_bubble",), True),
        (("schedule=zbv",), True),
        (("schedule=dualpipev",), True),
        (("schedule=interleaved",), False),
        (("schedule=zbv", "recompute=full"), False),
        (("schedule=zbv", "recompute=[mlp]"), False),
        (("schedule=zbv", "compile=layers"), False),
    ],
)
def test_backward_passes_stay_whole_where_layers_are_compiled_or_recomputed(
    words: tuple[str, ...], splits: bool
) -> None:
    named = [f"parallelism.{word}" for word in ("stages_per_rank=2", *words)]
    recipe = compose_recipe(read_point(["recipe=teuken7b", "scale=full", *named]))
    assert splits_backward(recipe.parallelism) == splits
