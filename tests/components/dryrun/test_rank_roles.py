"""Which ranks stand for which."""

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe
from components.dryrun.rank_roles import roles_of
from components.dryrun.rehearsal import microbatches_to_rehearse


def composed(*words: str) -> Recipe:
    return compose_recipe(read_point(["recipe=bloom176b", "cluster=jean_zay", *words]))


def test_equal_stages_are_one_role_and_every_rank_is_stood_for() -> None:
    recipe = composed()
    roles = roles_of(recipe)
    assert [(role.layers, role.first, role.last) for role in roles] == [
        ((5,), True, False),
        ((6,), False, False),
        ((5,), False, True),
    ]
    assert [role.stands_for for role in roles] == [32, 320, 32]
    for role in roles:
        places = recipe.rank_groups.find_coordinates(role.rank)
        assert places.pop("pipeline") == role.pipeline_rank
        assert set(places.values()) == {0}


def test_in_a_v_the_first_rank_has_both_ends_and_the_last_of_equal_ones_is_played() -> None:
    words = ("parallelism.schedule=zbv", "parallelism.stages_per_rank=2")
    roles = roles_of(
        composed(*words, "model.num_layers=72", "parallelism.stage_balance=layers")
    )
    assert [(role.layers, role.first, role.last) for role in roles] == [
        ((3, 3), True, True),
        ((3, 3), False, False),
    ]
    assert [role.pipeline_rank for role in roles] == [0, 11]
    assert [role.stands_for for role in roles] == [32, 352]


def test_a_stage_with_other_layers_is_a_role_of_its_own() -> None:
    roles = roles_of(composed("model.num_layers=73", "parallelism.stage_balance=layers"))
    assert len(roles) == 4
    assert sum(role.stands_for for role in roles) == 384


@pytest.mark.parametrize(
    ("words", "rehearsed"),
    [
        ((), 5),
        (("parallelism.schedule=gpipe",), 64),
        (("parallelism.schedule=interleaved", "parallelism.stages_per_rank=2"), 12),
        (("parallelism.schedule=zbv", "parallelism.stages_per_rank=2"), 9),
        (("parallelism.schedule=dualpipev", "parallelism.stages_per_rank=2"), 9),
        (("parallelism.pipeline=1", "parallelism.data=16"), 2),
    ],
)
def test_as_many_microbatches_are_rehearsed_as_reach_the_peak(
    words: tuple[str, ...], rehearsed: int
) -> None:
    recipe = compose_recipe(read_point(["recipe=playbook80b", "cluster=hopper", *words]))
    assert microbatches_to_rehearse(recipe) == rehearsed
