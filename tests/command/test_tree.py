"""A tree by its folders alone: where nodes are, how they stand, what is never done twice."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cluster.chain import SubmitEvent, SubmittedEvent
from cluster.job import job_settings, render_job_script
from cluster.records import Jobs
from cluster.script import MOST_NAME, job_name
from cluster.user import read_user
from command.arguments import read_point
from command.composition.compose import compose_run
from command.main import main
from command.run_tree.nodes import TreeNode, nodes_of, root_of, state_of
from command.tree.submission import submit_due
from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.planner.plan import plan_recipe
from components.planner.tree import plan_tree
from components.run.folder import RunFolder, create_run_folder
from tests.cluster.conftest import programs
from tests.cluster.jobs import CHECKOUT, job_of
from tests.cluster.programs import Programs

__all__ = ["programs"]  # the fixture
Said = pytest.CaptureFixture[str]

EVERY = 100_000_000_000
WORDS = (
    *("recipe=teuken7b", "scale=full", "cluster=juwels", f"checkpoint.every_tokens={EVERY}"),
    f"children.cooled={{at_tokens: {9 * EVERY}, with: weights}}",
    f"children.mean={{at_tokens: {9 * EVERY}, merge: {{last: 2}}}}",
    "children.given={of: cooled, export: {}}",
    "children.judged={of: mean, evaluate: {}}",
)


@cache
def composed(*words: str) -> tuple[Recipe, dict[str, Recipe]]:
    found = compose_run(read_point(words))
    return found.recipe, dict(found.children)


@pytest.fixture
def nodes(tmp_path: Path) -> dict[str, TreeNode]:
    """The trunk's folder and that of its one run, as submitting leaves them."""
    recipe, runs = composed(*WORDS)
    trunk = create_run_folder(recipe, tmp_path / "trunk")
    tree = runs["cooled"].model_dump(mode="json")
    tree["from"]["run"] = str(trunk.path)
    child = create_run_folder(check_recipe(tree), trunk.path / "children" / "cooled")
    for one in (trunk, child):
        (one.path / "jobs").mkdir()
    return {node.name: node for node in nodes_of(trunk.path)}


def save(folder: Path, tokens: int | None) -> None:
    place = folder / "checkpoints" / f"tokens-{tokens:015d}"
    place.mkdir(parents=True)
    (place / "progress.json").write_text("{}")


def test_a_child_run_is_recognized_as_part_of_its_trunk(nodes: dict[str, TreeNode]) -> None:
    trunk = nodes["cooled"].root
    assert root_of(trunk) == trunk
    assert root_of(nodes["cooled"].folder_path) == trunk
    assert nodes["given"].parent_run.path == nodes["cooled"].folder_path
    assert "action=merge" in nodes["mean"].command_words
    assert f"file={nodes['mean'].folder_path}" in nodes["mean"].command_words


def test_node_waits_and_is_submitted_once(nodes: dict[str, TreeNode]) -> None:
    cooled = nodes["cooled"]
    assert {state_of(node) for node in nodes.values()} == {"waiting"}
    save(cooled.root, cooled.child.at_tokens)
    assert state_of(cooled) == "due"
    jobs = Jobs(RunFolder(cooled.folder_path))
    jobs.append_events(SubmitEvent(at="2026", jobs=1))
    assert state_of(cooled) == "unknown"  # cut short: nobody knows whether it was taken
    submit_due(cooled.root)
    assert jobs.load_chain().job_ids == []
    jobs.append_events(SubmittedEvent(at="2026", chain="7"))
    assert state_of(cooled) == "submitted"


def test_status_has_the_tree(nodes: dict[str, TreeNode], capsys: Said) -> None:
    trunk = nodes["cooled"].root
    assert main(["action=status", f"run={trunk}", "output=json"]) == 0
    tree = json.loads(capsys.readouterr().out)["children"]
    assert {name: one["of"] for name, one in tree.items()} == {
        "cooled": None,
        "mean": None,
        "given": "cooled",
        "judged": "mean",
    }
    assert main(["action=status", f"run={trunk}"]) == 0
    said = capsys.readouterr().out
    assert [tree[name]["job"] for name in ("cooled", "given")] == [
        "teuken7b-cooled",
        "teuken7b-given",
    ]
    assert "teuken7b-judged" in said
    assert said.index("└─ cooled") < said.index("   └─ given") < said.index("└─ mean")


def test_only_scripts_of_runs_with_children_submit_children() -> None:
    with_tree, alone = render_job_script(job_of(*WORDS)), render_job_script(job_of(*WORDS[:4]))
    assert "-m command.tree.course" in with_tree
    assert "command.tree" not in alone
    assert "grow()" not in alone


@pytest.mark.parametrize(
    ("cluster", "line"), [("juwels", "#SBATCH --job-name={}"), ("aurora", "#PBS -N {}")]
)
def test_a_childs_job_is_named_after_its_node(cluster: str, line: str, tmp_path: Path) -> None:
    batch = "budget.global_batch_tokens=6291456"  # 1,536 sequences: 384 data ranks divide them
    words = (*WORDS[:2], f"cluster={cluster}", "parallelism.data=384", batch, *WORDS[3:])
    recipe = compose_run(read_point(list(words))).children["cooled"]
    user = read_user(cluster, {})
    settings = job_settings(recipe, user, repository=CHECKOUT, run=tmp_path, node="cooled")
    assert line.format("teuken7b-cooled") in render_job_script(settings).splitlines()
    long = job_name(recipe.model_copy(update={"name": "n" * 240}), "cooled")
    assert (len(long), long[-8:]) == (MOST_NAME, "n-cooled")


# What a tree costs.
BASE = ("recipe=teuken7b", "scale=full", "cluster=juwels", f"checkpoint.every_tokens={EVERY}")
NODES = (
    f"children.scored={{every_tokens: {5 * EVERY}, evaluate: {{}}}}",
    f"children.mean={{at_tokens: {59 * EVERY}, merge: {{last: 2}}}}",
    f"children.long={{of: mean, with: weights, set: {{budget.total_tokens: {2 * EVERY}}}}}",
    f"children.last={{of: long, at_tokens: {EVERY}, with: weights, "
    f"set: {{budget.total_tokens: {3 * EVERY}}}}}",
    "children.given={of: last, export: {}}",
)


def planned(capfd: Said, *words: str) -> dict[str, Any]:
    capfd.readouterr()
    assert main(["action=plan", *BASE, *words, "output=json"]) == 0
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


def test_a_tree_costs_the_sum_of_its_runs(capfd: Said) -> None:
    whole, (_, runs) = planned(capfd, *NODES), composed(*BASE, *NODES)
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
    assert "children" not in planned(capfd)


def test_the_longest_path_leads_through_checkpoints() -> None:
    recipe, runs = composed(*BASE, *NODES)
    bill = plan_recipe(recipe).cost_estimate
    tree = plan_tree(recipe, bill, runs)
    assert bill is not None
    assert tree.longest_path == ("root", "long", "last")
    # 59 of 60 parts of the trunk, then 1 and 3 of its hundreds of billions of tokens.
    assert tree.longest_days == pytest.approx(bill.days * (59 + 1 + 3) / 60, rel=0.01)
    cluster = recipe.cluster.model_copy(update={"scheduler": "none"})
    one_by_one = plan_tree(recipe.model_copy(update={"cluster": cluster}), bill, runs)
    assert one_by_one.longest_days == pytest.approx(bill.days * 65 / 60, rel=0.01)
    unknown = plan_tree(recipe, None, runs)  # a run without figures leaves the sum open
    assert (unknown.device_hours, unknown.longest_days) == (None, None)
    assert unknown.nodes["long"].device_hours is not None


def test_pages_and_proposals_have_the_trees_sums(tmp_path: Path, capfd: Said) -> None:
    page, paper = tmp_path / "plan.html", tmp_path / "proposal.md"
    assert main(["action=plan", *BASE, *NODES, f"file={page}", "output=json"]) == 0
    tree = json.loads(capfd.readouterr().out)["children"]
    assert "The full tree" in page.read_text()
    assert main(["action=plan", *BASE, *NODES, f"file={paper}"]) == 0
    said = capfd.readouterr().out.splitlines()
    (row,) = (line for line in said if line.strip().startswith("given"))
    assert row.count("not planned") == 4
    assert any(line.strip().startswith("all ") for line in said)
    (longest,) = (line for line in said if line.startswith("longest: "))
    assert longest.endswith(" days, root > long > last.")
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


def test_hour_limit_counts_whole_tree(capfd: Said, folder: Path, programs: Programs) -> None:
    """What is between the trunk's bill and the tree's is refused, and nothing is written."""
    programs.add("sbatch", says="77\n")
    trunk = planned(capfd, *NODES)["bill"]["device_hours"]
    words = ("action=submit", *BASE, *NODES, "site.account=kitchen", "run=trunk")
    assert main([*words, f"site.device_hours={trunk * 1.01}"]) == 2
    assert "site.device_hours: " in capfd.readouterr().err
    assert not (folder / "trunk").exists()
    assert programs.calls() == []
