"""The page of a tree: tokens on the trunk's clock, each node below the one that it is of."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from components.report.numbers import ABSENT
from components.report.outcome import load_entries
from components.report.tree import PlacedNode, place_node, tree_figure, tree_grid, write_tree
from tests.components.report.conftest import TOKENS_PER_STEP, WriteRun, earlier_results_tree

STEP = TOKENS_PER_STEP


def node(folder: Path, kind: str, begin: int, **more: object) -> PlacedNode:
    """Give a node that begins after so many steps."""
    fresh = PlacedNode(
        name=folder.name, kind=kind, of=None, begins=(begin * STEP,),
        ends=(begin + 60) * STEP, added=0, state="finished", folder=folder,
    )  # fmt: skip
    return replace(fresh, **more)  # type: ignore[arg-type]  # of the kinds above


@pytest.fixture
def trunk(write_run: WriteRun) -> PlacedNode:
    return node(write_run("trunk"), "run", 0)


@pytest.fixture
def nodes(trunk: PlacedNode, write_run: WriteRun) -> list[PlacedNode]:
    """A run that goes on, one with weights alone, a merge, evaluations, an export to come."""
    below = trunk.folder / "children"
    cooled = write_run("trunk/children/cooled", results=earlier_results_tree(60))
    stage = write_run("trunk/children/long")
    return [
        node(cooled, "run", 40, ends=70 * STEP),
        node(stage, "run", 50, added=50 * STEP),
        node(below / "mean", "merge", 60),
        node(below / "judged", "evaluate", 20, begins=(20 * STEP, 40 * STEP)),
        node(below / "given", "export", 110, of="long", state="waiting"),
    ]


def points_of(page: str) -> dict[str, list[float]]:
    """Read the tokens of each curve of the chart of losses."""
    data = page.partition('"chart-loss"')[2]
    curves, _ = json.JSONDecoder().raw_decode(data[data.index("[") :])
    return {curve["name"]: curve["x"] for curve in curves if isinstance(curve["x"], list)}


def test_curves_start_at_the_checkpoint_of_their_parent(trunk: PlacedNode, nodes) -> None:
    page = write_tree(trunk, nodes, trunk.folder / "tree.html").read_text("utf-8")
    found = points_of(page)
    assert found["trunk"] == found["cooled"] == [step * STEP for step in range(0, 61, 10)]
    assert found["long"] == [(50 + step) * STEP for step in range(0, 61, 10)]


def test_every_node_has_a_row_and_a_place_in_the_drawing(trunk: PlacedNode, nodes) -> None:
    folders = [one.folder for one in (trunk, *nodes) if one.has_run_folder]
    entries = [replace(one, label=one.run.folder.name) for one in load_entries(folders)]
    rows = {row[0]: row[1:] for row in tree_grid([trunk, *nodes], entries).rows}
    assert list(rows) == ["trunk", "cooled", "long", "mean", "judged", "given"]
    assert rows["given"] == ("export", "long", "901,120", ABSENT, "waiting", ABSENT)
    assert rows["judged"][2] == "163,840, 327,680"
    assert [rows[name][1] for name in ("trunk", "mean")] == [ABSENT, "trunk"]
    assert rows["long"][3] == "901,120"  # 50 steps of its parent and 60 of its own
    assert rows["cooled"][5] == f"{earlier_results_tree(60)['held_out']['final']:.4f}"

    figure = tree_figure(trunk, nodes, entries)
    places = list(figure.layout.yaxis.tickvals)
    lines = {(line.y0, line.y1, line.x0) for line in figure.layout.shapes}
    assert (0, places[1], 40 * STEP) in lines
    assert (places[2], places[5], 110 * STEP) in lines  # from the stage, not from the trunk
    thick = {one.name: list(one.x) for one in figure.data if one.line.width == 4}
    assert thick["long"] == [50 * STEP, 110 * STEP]


def test_a_merge_differs_from_an_unfinished_run(trunk: PlacedNode) -> None:
    (trunk.folder / "results.json").unlink()
    assert load_entries([trunk.folder])[0].outcome.status == "unfinished"
    (trunk.folder / "merge.json").write_text("{}")
    assert load_entries([trunk.folder])[0].outcome.status == "merged"


def test_an_evaluation_of_many_checkpoints_names_the_first_ones(trunk: PlacedNode) -> None:
    many = node(trunk.folder / "many", "evaluate", 0, begins=(1, 2, 3, 4, 5))
    [row] = tree_grid([many], []).rows
    assert row[3] == "1, 2, 3 and 2 more"


def test_children_of_a_merge_start_at_its_checkpoint(trunk: PlacedNode) -> None:
    stage = node(trunk.folder / "stage", "run", 50, added=50 * STEP)
    mean = node(trunk.folder / "mean", "merge", 70, of="stage", added=50 * STEP)
    above = {None: trunk, "stage": stage, "mean": mean}
    assert place_node(None, 9, above) == (9, 0)
    assert place_node("stage", 9, above) == (50 * STEP + 9, 50 * STEP)
    assert place_node("mean", None, above) == (70 * STEP, 50 * STEP)
