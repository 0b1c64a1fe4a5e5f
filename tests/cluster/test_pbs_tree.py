"""A tree on PBS, run whole by a stand-in: the trunk's job submits what follows, once."""

from pathlib import Path

import pytest

from cluster.records import Jobs
from command.run_tree.nodes import nodes_of, state_of
from components.report.measurements import read_evaluations
from components.run.folder import RunFolder
from tests.cluster import openpbs
from tests.cluster.test_pbs_chain import HERE, SMALL, home, machine, wait_until
from tests.life.conftest import act, entries

__all__ = ["home", "machine"]

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3_600)]

TREE = (
    "children.cooled={at_tokens: 1024, with: optimizer, set: {budget.total_tokens: 1536}}",
    "children.mean={at_tokens: 2048, merge: {last: 2}}",
    "children.judged={of: cooled, evaluate: {}}",
)


def test_the_jobs_of_a_tree_submit_what_follows_from_their_checkpoints(
    home: Path, machine: str
) -> None:
    here = [word for word in HERE if not word.startswith("cluster.nodes")]
    own = (
        *("budget.total_tokens=2_048", "checkpoint.every_tokens=512"),
        *("evaluation.every_tokens=2_048", "cluster.nodes=1", "cluster.hours=0.5"),
    )
    trunk = home / "trunk"
    assert act(home, *SMALL, *here, machine, *own, *TREE, f"run={trunk}") == 0
    nodes = {node.name: node for node in nodes_of(trunk)}
    assert {state_of(node) for node in nodes.values()} == {"waiting"}

    def grown() -> bool:
        return {state_of(node) for node in nodes.values()} == {"finished"}

    wait_until(trunk, grown, 600)
    jobs = [openpbs.read(file.stem) for file in openpbs.folder().glob("[0-9]*.json")]
    assert sorted(job["Job_Name"] for job in jobs) == [
        "teuken7b",
        *(f"teuken7b-{name}" for name in ("cooled", "judged", "mean")),
    ]
    cooled = nodes["cooled"].folder_path
    assert [one["tokens"] for one in entries(cooled, "step")][-1] == 1_536
    assert len(Jobs(RunFolder(cooled)).load_chain().submissions) == 1
    assert {one["tokens_trained"] for one in read_evaluations(cooled)} == {1_536}
