"""The bill of a tree: each node's own part, their sum, and the longest way in days."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from command.arguments import read_point
from command.composition.compose import compose_run
from command.main import main
from components.config.recipe import Recipe
from components.planner.plan import plan_recipe
from components.planner.tree import plan_tree
from tests.cluster.conftest import programs
from tests.cluster.programs import Programs

Said = pytest.CaptureFixture[str]

__all__ = ["programs"]  # the fixture

EVERY = 100_000_000_000
BASE = ("recipe=teuken7b", "scale=full", "cluster=juwels", f"checkpoint.every_tokens={EVERY}")
NODES = (
    f"children.scored={{every_tokens: {5 * EVERY}, evaluate: {{}}}}",
    f"children.mean={{at_tokens: {59 * EVERY}, merge: {{last: 2}}}}",
    f"children.long={{of: mean, with: weights, set: {{budget.total_tokens: {2 * EVERY}}}}}",
    f"children.last={{of: long, at_tokens: {EVERY}, with: weights, "
    f"set: {{budget.total_tokens: {3 * EVERY}}}}}",
    "children.given={of: last, export: {}}",
)


@cache
def composed() -> tuple[Recipe, dict[str, Recipe]]:
    composed = compose_run(read_point([*BASE, *NODES]))
    return composed.recipe, dict(composed.children)


def planned(capfd: Said, *words: str) -> dict[str, Any]:
    capfd.readouterr()
    assert main(["action=plan", *BASE, *words, "output=json"]) == 0
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


def test_a_tree_costs_what_its_runs_cost_each_planned_alone(capfd: Said) -> None:
    whole, (_, runs) = planned(capfd, *NODES), composed()
    tree = whole["children"]
    assert list(tree["nodes"]) == ["root", "scored", "mean", "long", "last", "given"]
    bills = {name: plan_recipe(run).cost_estimate for name, run in runs.items()}
    hours = whole["bill"]["device_hours"]
    for name, bill in bills.items():
        assert bill is not None
        assert tree["nodes"][name]["device_hours"] == pytest.approx(bill.device_hours)
        hours += bill.device_hours
    assert tree["device_hours"] == pytest.approx(hours)
    # As many parts of the trunk's steps and evaluations as the child has of its tokens.
    assert tree["nodes"]["long"]["device_hours"] == pytest.approx(
        whole["bill"]["device_hours"] / 30, rel=0.01
    )
    assert tree["not_planned"] == ["scored", "mean", "given"]
    assert tree["nodes"]["mean"]["device_hours"] is None


def test_the_longest_way_goes_from_checkpoint_to_checkpoint() -> None:
    recipe, runs = composed()
    bill = plan_recipe(recipe).cost_estimate
    tree = plan_tree(recipe, bill, runs)
    assert bill is not None
    assert tree.longest_path == ("root", "long", "last")
    # 59 of 60 parts of the trunk, then 1 and 3 of its hundreds of billions of tokens.
    assert tree.longest_days == pytest.approx(bill.days * (59 + 1 + 3) / 60, rel=0.01)
    alone = recipe.model_copy(
        update={"cluster": recipe.cluster.model_copy(update={"scheduler": "none"})}
    )
    one_by_one = plan_tree(alone, bill, runs)
    assert one_by_one.longest_days == pytest.approx(bill.days * 65 / 60, rel=0.01)


def test_a_run_without_figures_leaves_the_sum_open() -> None:
    recipe, runs = composed()
    tree = plan_tree(recipe, None, runs)
    assert (tree.device_hours, tree.longest_days) == (None, None)
    assert tree.nodes["long"].device_hours is not None


def test_the_table_says_what_is_not_planned(capfd: Said) -> None:
    assert main(["action=plan", *BASE, *NODES]) == 0
    said = capfd.readouterr().out.splitlines()
    (row,) = (line for line in said if line.strip().startswith("given"))
    assert row.count("not planned") == 4
    assert any(line.strip().startswith("all ") for line in said)
    (longest,) = (line for line in said if line.startswith("longest: "))
    assert longest.endswith(" days, root > long > last.")
    assert "children" not in planned(capfd)


def test_pages_and_proposals_have_the_trees_sums(tmp_path: Path, capfd: Said) -> None:
    page, paper = tmp_path / "plan.html", tmp_path / "proposal.md"
    assert main(["action=plan", *BASE, *NODES, f"file={page}", "output=json"]) == 0
    tree = json.loads(capfd.readouterr().out)["children"]
    assert "The full tree" in page.read_text()
    assert main(["action=plan", *BASE, *NODES, f"file={paper}"]) == 0
    rows = dict(
        line.strip("| ").split(" | ")[:2]
        for line in paper.read_text().splitlines()
        if line.startswith("| ") and line.count(" | ") == 2
    )
    hours = rows["total device-hours, expected"].replace(",", "")
    assert float(hours) == pytest.approx(tree["device_hours"], rel=1e-3)
    (given,) = (text for name, text in rows.items() if name.startswith("given: export after "))
    assert given == "not planned"
    assert "for its children" in paper.read_text()
    below = sum(tree["nodes"][name]["storage_bytes"] for name in ("long", "last"))
    assert rows["storage of children"] == f"{below / 1e9:,.1f} GB"


def test_a_limit_of_device_hours_is_for_the_whole_tree(
    capfd: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: Programs
) -> None:
    """What is between the trunk's bill and the tree's is refused, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    programs.add("sbatch", says="77\n")
    trunk = planned(capfd, *NODES)["bill"]["device_hours"]
    words = ("action=submit", *BASE, *NODES, "site.account=kitchen", "run=trunk")
    assert main([*words, f"site.device_hours={trunk * 1.01}"]) == 2
    assert "site.device_hours: " in capfd.readouterr().err
    assert not (tmp_path / "trunk").exists()
    assert programs.calls() == []
