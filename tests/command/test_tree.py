"""A tree by its folders alone: where nodes are, how they stand, what is never done twice."""

import json
from functools import cache
from pathlib import Path

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
from components.run.folder import RunFolder, create_run_folder
from tests.cluster.jobs import CHECKOUT, job_of

EVERY = 100_000_000_000
WORDS = (
    *("recipe=teuken7b", "scale=full", "cluster=juwels", f"checkpoint.every_tokens={EVERY}"),
    f"children.cooled={{at_tokens: {9 * EVERY}, with: weights}}",
    f"children.mean={{at_tokens: {9 * EVERY}, merge: {{last: 2}}}}",
    "children.given={of: cooled, export: {}}",
    "children.judged={of: mean, evaluate: {}}",
)


@cache
def composed() -> tuple[Recipe, dict[str, Recipe]]:
    composed = compose_run(read_point(list(WORDS)))
    return composed.recipe, dict(composed.children)


@pytest.fixture
def nodes(tmp_path: Path) -> dict[str, TreeNode]:
    """The trunk's folder and that of its one run, as submitting leaves them."""
    recipe, runs = composed()
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


def test_a_run_below_a_trunk_is_known_as_its_own(nodes: dict[str, TreeNode]) -> None:
    trunk = nodes["cooled"].root
    assert root_of(trunk) == trunk
    assert root_of(nodes["cooled"].folder_path) == trunk
    assert nodes["given"].parent_run.path == nodes["cooled"].folder_path
    assert "action=merge" in nodes["mean"].command_words
    assert f"file={nodes['mean'].folder_path}" in nodes["mean"].command_words


def test_a_node_waits_for_its_checkpoint_and_is_handed_over_once(
    nodes: dict[str, TreeNode],
) -> None:
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


def test_status_has_the_tree(
    nodes: dict[str, TreeNode], capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_only_the_script_of_a_run_with_children_submits_them() -> None:
    with_tree, alone = render_job_script(job_of(*WORDS)), render_job_script(job_of(*WORDS[:4]))
    assert "-m command.tree.course" in with_tree
    assert "command.tree" not in alone
    assert "grow()" not in alone


@pytest.mark.parametrize(
    ("cluster", "line"), [("juwels", "#SBATCH --job-name={}"), ("aurora", "#PBS -N {}")]
)
def test_a_childs_job_is_called_by_its_node(cluster: str, line: str, tmp_path: Path) -> None:
    batch = "budget.global_batch_tokens=6291456"  # 1,536 sequences: 384 data ranks divide them
    words = (*WORDS[:2], f"cluster={cluster}", "parallelism.data=384", batch, *WORDS[3:])
    recipe = compose_run(read_point(list(words))).children["cooled"]
    user = read_user(cluster, {})
    settings = job_settings(recipe, user, repository=CHECKOUT, run=tmp_path, node="cooled")
    assert line.format("teuken7b-cooled") in render_job_script(settings).splitlines()
    long = job_name(recipe.model_copy(update={"name": "n" * 240}), "cooled")
    assert (len(long), long[-8:]) == (MOST_NAME, "n-cooled")
