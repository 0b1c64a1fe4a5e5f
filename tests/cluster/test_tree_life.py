"""A tree of seven nodes on a real Slurm, to its end: one node is put back and goes on."""

import pytest

from cluster.records import Jobs
from command.tree.nodes import nodes_of, state_of
from components.report.measurements import read_evaluations
from components.run.folder import RunFolder
from tests.cluster.slurm import LocalSlurm
from tests.cluster.test_slurm_life import Submit, home, submit, wait_until
from tests.life.conftest import entries

__all__ = ["home", "submit"]

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3_600)]

SAVED, TOTAL = 1_024, 4_096
TREE = {
    "cool_a": {"at_tokens": 2_048, "with": "optimizer", "set": {"budget.total_tokens": 3_072}},
    "cool_b": {"at_tokens": 3_072, "with": "optimizer", "set": {"budget.total_tokens": 5_120}},
    "mean": {"at_tokens": 4_096, "merge": {"last": 2}},
    "long": {
        "of": "mean",
        "with": "weights",
        "set": {"budget.sequence_length": 128, "budget.total_tokens": 1_024},
    },
    "judged": {"every_tokens": 2_048, "evaluate": {}},
    "judged_a": {"of": "cool_a", "at_tokens": 3_072, "evaluate": {}},
}


def text(value: object) -> str:
    """Write a node as a word of the command has it."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {text(one)}' for key, one in value.items())}}}"
    return str(value)


def test_a_tree_of_seven_nodes_comes_to_its_end_though_one_is_put_back(
    slurm: LocalSlurm, submit: Submit
) -> None:
    # Named they are final: no scale shrinks them.
    named = [f"children.{name}={text(one)}" for name, one in TREE.items()]
    own = (f"budget.total_tokens={TOTAL}", "cluster.nodes=1")
    saves = (f"checkpoint.every_tokens={SAVED}", "checkpoint.keep=1", "parallelism.data=4")
    trunk = submit("trunk", *own, *saves, "site.account=kitchen", "cluster.hours=0.2", *named)
    nodes = {node.name: node for node in nodes_of(trunk)}
    child = nodes["cool_b"].path
    wait_until(slurm, trunk, lambda: Jobs(RunFolder(child)).chain().open is not None, 400)
    attempt = Jobs(RunFolder(child)).chain().open
    assert attempt is not None
    slurm.call("scontrol", "requeue", attempt.job)

    def grown() -> bool:
        return {state_of(one) for one in nodes.values()} == {"finished"}

    wait_until(slurm, trunk, grown, 900)
    attempts = Jobs(RunFolder(child)).chain().attempts
    assert len(attempts) > 1
    assert [one["tokens"] for one in entries(child, "step")][-1] == 5_120
    for name in ("cool_a", "cool_b", "long"):
        submissions = Jobs(RunFolder(nodes[name].path)).chain().submissions
        assert len(submissions) == 1, name
    assert len(Jobs(RunFolder(trunk)).chain().attempts) == 1
    assert {one["tokens_trained"] for one in read_evaluations(trunk)} == {2_048, 4_096}
    assert {one["tokens_trained"] for one in read_evaluations(nodes["cool_a"].path)} == {3_072}
