"""``parallelism=auto``: what it freezes, how it is narrowed, what it refuses."""

import json
from functools import cache

import pytest

from command.actions.jobs.render import run as render
from command.actions.show import run as show
from command.arguments import read_point
from command.composition.compose import compose_recipe, compose_run
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.planner.plan import plan_recipe

JUWELS = ["recipe=teuken7b", "cluster=juwels", "parallelism=auto"]
FOUR_NODES = [*JUWELS, "cluster.nodes=4"]  # fewer layouts to search than on the usual 128


@cache
def composed(*words: str) -> Recipe:
    return compose_recipe(read_point([*words]))


def refused(*words: str) -> str:
    with pytest.raises(RecipeError) as caught:
        composed(*words)
    return str(caught.value)


@pytest.mark.long
def test_nodes_are_those_of_the_published_ranks_unless_named() -> None:
    assert composed(*JUWELS).cluster.nodes == 128
    assert composed(*JUWELS, "cluster.nodes=16").cluster.nodes == 16
    assert composed(*JUWELS, "cluster.ranks=64").cluster.nodes == 16


def test_published_ranks_that_fill_no_nodes_give_the_best_number_around() -> None:
    words = ["recipe=teuken7b", "cluster=aurora", "parallelism=auto", "parallelism.pipeline=3"]
    cluster = composed(*words, "parallelism.tensor=1", "parallelism.zero=1").cluster
    assert cluster.nodes == 16  # 17 to 255 have no queue in which a chain may wait
    assert cluster.ranks == 12 * cluster.nodes


@pytest.mark.quick("tensor=4")
@pytest.mark.parametrize("key", ["tensor=4", "zero=2", "recompute=full"])
def test_a_named_key_is_final_and_the_rest_is_searched(key: str) -> None:
    name, _, value = key.partition("=")
    free = composed(*FOUR_NODES)
    narrowed = compose_run(read_point([*FOUR_NODES, f"parallelism.{key}"]))
    assert str(getattr(narrowed.recipe.parallelism, name)) == value
    assert compute_fingerprint(narrowed.recipe) == compute_fingerprint(free)
    best, wide = plan_recipe(narrowed.recipe).time, plan_recipe(free).time
    assert best is not None
    assert wide is not None
    assert best.total_seconds >= wide.total_seconds


def test_gpipe_is_searched_only_where_it_is_named() -> None:
    words = ("parallelism.schedule=gpipe", "parallelism.pipeline=4")
    degrees = composed(*JUWELS, *words).parallelism
    assert (degrees.schedule, degrees.stages_per_rank) == ("gpipe", 1)


def test_show_freezes_the_degrees_that_were_found(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*FOUR_NODES, "parallelism.tensor=2", "parallelism.pipeline=2"]
    show(read_point([*words, "output=json"]))
    shown = json.loads(capsys.readouterr().out)["recipe"]["parallelism"]
    assert shown == composed(*words).parallelism.model_dump(mode="json")
    assert "auto" not in shown.values()


def test_render_requests_the_nodes_of_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*FOUR_NODES, "parallelism.tensor=4", "action=render", "site.account=me"]
    render(read_point(words))
    assert "#SBATCH --nodes=4\n" in capsys.readouterr().out


@pytest.mark.long
def test_the_fewest_nodes_in_time_are_found() -> None:
    found = compose_run(read_point([*JUWELS, "within_days=300"])).recipe
    bill = plan_recipe(found).cost_estimate
    assert bill is not None
    assert bill.days <= 300
    assert found.cluster.nodes < 128
    for nodes in range(found.cluster.nodes * 7 // 8, found.cluster.nodes):
        try:
            fewer = plan_recipe(composed(*JUWELS, f"cluster.nodes={nodes}")).cost_estimate
        except RecipeError:
            continue
        assert fewer is not None
        assert fewer.days > 300


@pytest.mark.parametrize(
    ("words", "begin", "end"),
    [
        (
            ("recipe=teuken7b", "parallelism=auto"),
            "parallelism: auto, but cluster 'local' has no measured hardware profile",
            "on a cluster with a profile: cluster=juwels",
        ),
        ((*JUWELS, "scale=mini"), "parallelism: auto does not apply to scale=mini", ""),
        (
            (*JUWELS, "parallelism.tensor=3", "parallelism.zero=1"),
            "parallelism: auto: no layout is legal on 128 nodes of juwels (512 ranks)",
            "remove some of parallelism.tensor=3, parallelism.zero=1, or set another number of "
            "nodes: cluster.nodes=...",
        ),
        (
            (*JUWELS, "cluster.nodes=127"),
            "parallelism: auto: no layout is legal on 127 nodes of juwels (508 ranks)",
            "set another number of nodes: cluster.nodes=...",
        ),
        (
            (*JUWELS, "cluster.ranks=510"),
            "cluster.ranks: 510 ranks do not fill nodes of 4 devices",
            "nearest valid values: 508 and 512",
        ),
        ((*JUWELS, "within_days=3"), "within_days: 3: no number of nodes of juwels gets", ""),
        ((*JUWELS, "within_days=30", "cluster.nodes=8"), "within_days: 30 conflicts", ""),
        ((*JUWELS, "within_days=30", "cluster.ranks=32"), "within_days: 30 conflicts", ""),
    ],
)
def test_a_failed_search_has_a_reason(words: tuple[str, ...], begin: str, end: str) -> None:
    text = refused(*words)
    assert text.startswith(begin)
    assert text.endswith(end)


def test_a_layout_that_does_not_fit_names_the_missing_memory() -> None:
    words = ["recipe=gpt175b", "cluster=smng_p2", "parallelism=auto"]
    text = refused(*words, "cluster.nodes=2")
    assert "legal layouts fits 2 nodes of smng_p2 (16 ranks); the nearest, " in text
    assert "GiB per device of 64.0" in text
    assert composed(*words, "cluster.nodes=6").cluster.nodes == 6


def test_within_days_without_a_fitting_layout_has_a_message() -> None:
    words = ["recipe=gpt175b", "cluster=juwels", "parallelism=auto", "within_days=30"]
    text = refused(
        *words, "parallelism.zero=0", "parallelism.tensor=1", "parallelism.pipeline=1"
    )
    assert "no layout fits any number of nodes of juwels up to 936" in text


def test_auto_is_not_a_file_of_layouts() -> None:
    arguments = read_point(["recipe=teuken7b", "parallelism=auto", "within_days=30"])
    assert (arguments.searches, arguments.within_days) == (True, 30.0)
    assert arguments.choices == {}
    assert not read_point(["recipe=teuken7b"]).searches


def test_days_need_a_search() -> None:
    with pytest.raises(
        RecipeError, match=r"^within_days: 30 requires .*\n  add parallelism=auto$"
    ):
        read_point(["recipe=teuken7b", "cluster=juwels", "within_days=30"])


@pytest.mark.parametrize("value", ["soon", "0"])
def test_days_are_a_positive_number(value: str) -> None:
    with pytest.raises(RecipeError, match=r"^within_days: input should be "):
        read_point([*JUWELS, f"within_days={value}"])
