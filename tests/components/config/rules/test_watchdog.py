"""What the watchdog refuses, by path, value and way out."""

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.layout import reserve_of
from components.config.resolve import update_recipe
from components.errors import RecipeError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "watchdog.step_seconds=10.0 watchdog.pause_seconds=5.0",
            r"watchdog\.pause_seconds: 5\.0 is less than watchdog\.step_seconds 10\.0(.|\n)*"
            r"write watchdog\.pause_seconds=10\.0 or more",
        ),
        (
            "watchdog.restarts=1",
            r"watchdog\.restarts: 1, but a single local rank has no agent",
        ),
        (
            "cluster.ranks=2 watchdog.restarts=1 cluster.spare_nodes=1",
            r"cluster\.spare_nodes: 1, but spare nodes need a scheduler",
        ),
        (
            "cluster=juwels cluster.spare_nodes=2 cluster.preflight=none watchdog.restarts=0",
            r"cluster\.spare_nodes: 2, but a run without preflight and(.|\n)*"
            r"set watchdog\.restarts=3 or cluster\.preflight",
        ),
        ("watchdog.slow_ratio=1.0", r"watchdog\.slow_ratio: input should be greater than 1"),
    ],
)
def test_what_cannot_be_watched_is_refused(words: str, message: str) -> None:
    named = [] if words.startswith("recipe=") else ["recipe=teuken7b"]
    with pytest.raises(RecipeError, match=message):
        compose_recipe(read_point([*named, *words.split()]))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("recipe=bloom176b cluster=jean_zay", (48, 4, 4)),  # 32 GPUs, as BLOOM's reserve
        ("recipe=bloom176b cluster=jean_zay parallelism.data=4", (24, 2, 2)),
        ("recipe=bloom176b cluster=jean_zay cluster.spare_nodes=1", (48, 1, 1)),
        ("recipe=bloom176b cluster=jean_zay watchdog.restarts=9", (48, 4, 9)),
        ("recipe=mula220b_a10b cluster=aurora", (256, 5, 5)),
        (
            "recipe=mula1b cluster=aurora scale=mini cluster.nodes=2 "
            "budget.global_batch_tokens=6_144",
            (2, 0, 0),
        ),
        ("recipe=bloom176b", (1, 0, 0)),
    ],
)
def test_a_profile_keeps_its_fraction_of_a_job_s_nodes_and_a_launch_for_each(
    words: str, expected: tuple[int, int, int]
) -> None:
    recipe = compose_recipe(read_point(words.split()))
    cluster = recipe.cluster
    assert (cluster.nodes, cluster.spare_nodes, recipe.watchdog.restarts) == expected


def test_no_more_spare_nodes_are_asked_for_than_a_queue_takes() -> None:
    job = {"nodes": 50, "spare_fraction": 0.0834, "queues": [{"most_nodes": 52}]}
    assert reserve_of(job) == 2
    assert reserve_of(job | {"queues": []}) == 4
    assert reserve_of(job | {"nodes": 53}) == 0


def test_a_run_that_moves_keeps_what_its_user_said_and_derives_the_rest_again() -> None:
    large = compose_recipe(read_point(["recipe=mula220b_a10b", "cluster=aurora"]))
    half = update_recipe(large, {"parallelism.data": 16})
    assert (half.cluster.nodes, half.cluster.spare_nodes) == (128, 2)
    assert half.watchdog.restarts == 2
    named = large.model_copy(
        update={"watchdog": large.watchdog.model_copy(update={"restarts": 3})}
    )
    assert update_recipe(named, {"parallelism.data": 16}).watchdog.restarts == 3
