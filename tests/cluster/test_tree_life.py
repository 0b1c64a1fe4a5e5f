"""Trees on a real Slurm: one node is put back and goes on; a cancelled tree is continued."""

import json

import pytest

from cluster.records import Jobs
from command.main import main
from command.run_tree.nodes import nodes_of, state_of
from components.report.measurements import read_evaluations
from components.run.folder import RunFolder
from tests.cluster.programs import Said
from tests.cluster.slurm import LocalSlurm
from tests.cluster.test_slurm_life import Submit, status, submit, wait_until
from tests.life.conftest import entries

__all__ = ["submit"]

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


def test_tree_ends_though_one_node_is_put_back(slurm: LocalSlurm, submit: Submit) -> None:
    # Named they are final: no scale shrinks them.
    named = [f"children.{name}={text(one)}" for name, one in TREE.items()]
    own = (f"budget.total_tokens={TOTAL}", "cluster.nodes=1")
    saves = (f"checkpoint.every_tokens={SAVED}", "checkpoint.keep=1", "parallelism.data=4")
    trunk = submit("trunk", *own, *saves, "site.account=kitchen", "cluster.hours=0.2", *named)
    nodes = {node.name: node for node in nodes_of(trunk)}
    child = nodes["cool_b"].folder_path
    wait_until(
        slurm, trunk, lambda: Jobs(RunFolder(child)).load_chain().open_attempt is not None, 400
    )
    attempt = Jobs(RunFolder(child)).load_chain().open_attempt
    assert attempt is not None
    slurm.call("scontrol", "requeue", attempt.job)

    def grown() -> bool:
        return {state_of(one) for one in nodes.values()} == {"finished"}

    wait_until(slurm, trunk, grown, 900)
    attempts = Jobs(RunFolder(child)).load_chain().attempts
    assert len(attempts) > 1
    assert [one["tokens"] for one in entries(child, "step")][-1] == 5_120
    for name in ("cool_a", "cool_b", "long"):
        submissions = Jobs(RunFolder(nodes[name].folder_path)).load_chain().submissions
        assert len(submissions) == 1, name
    assert len(Jobs(RunFolder(trunk)).load_chain().attempts) == 1
    assert {one["tokens_trained"] for one in read_evaluations(trunk)} == {2_048, 4_096}
    assert {one["tokens_trained"] for one in read_evaluations(nodes["cool_a"].folder_path)} == {
        3_072
    }


CANCELLED = {
    "cooled": {"at_tokens": 2_048, "with": "optimizer", "set": {"budget.total_tokens": 3_072}},
    "mean": {"at_tokens": 4_096, "merge": {"last": 2}},
    "given": {"of": "mean", "export": {}},
    "judged": {"at_tokens": 4_096, "evaluate": {}},
}


def test_resume_continues_cancelled_tree(
    slurm: LocalSlurm, submit: Submit, capsys: Said
) -> None:
    def states() -> dict[str, str]:
        capsys.readouterr()
        assert main(["action=status", f"run={trunk}", "output=json"]) == 0
        shown = json.loads(capsys.readouterr().out)["children"]
        return {name: one["state"] for name, one in shown.items()}

    def queue() -> str:
        return slurm.call("squeue", "--noheader", "--format=%j")

    named = [f"children.{name}={text(one)}" for name, one in CANCELLED.items()]
    own = (f"budget.total_tokens={TOTAL}", "cluster.nodes=1", "cluster.jobs=1")
    saves = (f"checkpoint.every_tokens={SAVED}", "checkpoint.keep=1", "parallelism.data=4")
    trunk = submit("stopped", *own, *saves, "site.account=kitchen", "cluster.hours=0.2", *named)
    wait_until(slurm, trunk, lambda: status(trunk).state in {"running", "finished"}, 100)
    slurm.call("scontrol", "update", "PartitionName=booster", "State=DOWN")
    try:
        wait_until(slurm, trunk, lambda: status(trunk).state == "finished", 100)
        wait_until(slurm, trunk, lambda: not status(trunk).queued, 100)
        waiting = {"cooled": "pending", "mean": "submitted", "judged": "submitted"}
        assert states() == {**waiting, "given": "waiting"}
        assert main(["action=cancel", f"run={trunk}"]) == 0
        wait_until(slurm, trunk, lambda: not queue(), 30)
        left = {"cooled": "cancelled", "mean": "lost", "judged": "due", "given": "waiting"}
        assert states() == left
        assert main([f"resume={trunk}", "checkpoint.keep=2"]) == 2
        assert main([f"resume={trunk}", "site.account=kitchen"]) == 0
        assert len(queue().split()) == 3
        assert main([f"resume={trunk}", "site.account=kitchen"]) == 0
        assert len(queue().split()) == 3  # nothing is submitted twice
    finally:
        slurm.call("scontrol", "update", "PartitionName=booster", "State=UP")
    wait_until(slurm, trunk, lambda: {*states().values()} == {"finished"}, 400)
    assert len(Jobs(RunFolder(trunk)).load_chain().attempts) == 1
    assert len(Jobs(RunFolder(trunk / "children" / "cooled")).load_chain().attempts) == 1
