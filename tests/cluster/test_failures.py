"""What a failed job left tells which rank failed first, where, and whether it is the node's."""

import os
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors.error_handler import ErrorHandler

from cluster.end import Failure, copies_failure, find_failure
from components.errors import RecipeError
from components.fault_tolerance.soft_failure import NotFiniteError

NODES = ("jwb0001", "jwb0002")
# As Slurm 22.05 says it when a rank is killed.
SRUN = """\
srun: error: jwb0002: task 5: Killed
srun: launch/slurm: _step_signal: Terminating StepId=1.0
slurmstepd-jwb0001: error: *** STEP 1.0 ON jwb0001 CANCELLED AT 2026-11-21T23:00:12 ***
srun: error: jwb0002: tasks 4,6-7: Terminated
srun: error: jwb0001: tasks 0-3: Terminated
"""
PALS = "x4204c5s2b0n0.hsn.cm.aurora.alcf.anl.gov: rank 1 died from signal 9\n"


def raise_in(monkeypatch: pytest.MonkeyPatch, ranks: Path, rank: int, error: Exception) -> None:
    """Write what torch's ``record`` writes when a rank raises; later calls are later."""
    file = ranks / f"error-{rank}.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    ErrorHandler().record_exception(error)
    later = len(list(ranks.iterdir()))
    os.utime(file, (later, later))


def find(ranks: Path, log: str = "", nodes: tuple[str, ...] = NODES) -> Failure:
    return find_failure(ranks=ranks, log=log, nodes=nodes, per_node=4, status=1)


def test_the_first_rank_to_raise_is_named_with_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raise_in(monkeypatch, tmp_path, 6, ValueError("loss is NaN"))
    raise_in(monkeypatch, tmp_path, 0, ValueError("loss is NaN here too"))
    found = find(tmp_path)
    assert found.why == "rank 6: ValueError: loss is NaN"
    assert found.nodes == ("jwb0002",)
    assert not found.of_node
    assert not found.of_user


def test_who_only_lost_another_rank_did_not_fail_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = RuntimeError("Connection closed by peer [127.0.0.1]:1234")
    raise_in(monkeypatch, tmp_path, 0, lost)
    raise_in(monkeypatch, tmp_path, 1, IndexError("index out of range"))
    assert find(tmp_path).why == "rank 1: IndexError: index out of range"


def test_a_node_that_slurm_calls_lost_is_left_out_whoever_misses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = "srun: error: Node failure on jwb0002\nsrun: Job step aborted\n"
    gone = RuntimeError("Connection closed by peer [127.0.0.1]:1234")
    raise_in(monkeypatch, tmp_path, 0, gone)
    found = find(tmp_path, log)
    assert (found.why, found.nodes) == ("node jwb0002 was lost", ("jwb0002",))
    assert found.of_node
    raise_in(monkeypatch, tmp_path, 1, IndexError("index out of range"))
    assert find(tmp_path, log).why == "rank 1: IndexError: index out of range"


def test_a_killed_rank_is_known_from_srun_though_others_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raise_in(monkeypatch, tmp_path, 0, RuntimeError("Connection reset by peer"))
    found = find(tmp_path, log=SRUN)
    assert found.why == "rank 5 on jwb0002: Killed"
    assert (found.nodes, found.of_node) == (("jwb0002",), True)


def test_what_pals_says_is_read_too(tmp_path: Path) -> None:
    found = find(tmp_path, log=PALS, nodes=("x4204c5s2b0n0", "x4204c5s2b0n1"))
    assert found.why == f"rank 1 on {PALS.partition(':')[0]}: died from signal 9"
    assert (found.nodes, found.of_node) == (("x4204c5s2b0n0",), True)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: uncorrectable ECC error encountered",
        "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus",
        "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
        "HIP error: uncorrectable ECC error encountered",
        "HIP error: no ROCm-capable device is detected",
        "HW Exception by GPU node-9 (Agent handle: 0x631351bb5a20) reason :GPU Hang",
    ],
)
def test_a_device_that_breaks_makes_its_node_suspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    raise_in(monkeypatch, tmp_path, 3, RuntimeError(text))
    found = find(tmp_path)
    assert (found.nodes, found.of_node) == (("jwb0001",), True)


HANGS = "HW Exception by GPU node-9 (Agent handle: 0x631351bb5a20) reason :GPU Hang"
FAULT = "Memory access fault by GPU node-4 (Agent handle: 0x152e220) on address (nil)."


@pytest.mark.parametrize(
    ("said", "of_node"), [(HANGS, True), (FAULT, False), ("nothing of a device", True)]
)
def test_a_rank_that_amd_s_runtime_aborted_has_its_last_words(
    tmp_path: Path, said: str, of_node: bool
) -> None:
    (tmp_path / "6-5.log").write_text(f"{FAULT}\n")
    (tmp_path / "7-5.log").write_text("step\n" * 2_000 + said)
    (tmp_path / "7-15.log").write_text(f"{FAULT}\n")
    (tmp_path / "7-preflight-5.log").write_text(f"{FAULT}\n")
    os.utime(tmp_path / "6-5.log", (1, 1))
    found = find(tmp_path, log=SRUN.replace("Killed", "Aborted (core dumped)"))
    told = "" if said.startswith("nothing") else f": {said}"
    assert found.why == f"rank 5 on jwb0002: Aborted (core dumped){told}"
    assert (found.nodes, found.of_node) == (("jwb0002",), of_node)


def test_a_mistake_in_the_recipe_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RecipeError("data.sources.eu", "is missing", "prepare it again")
    raise_in(monkeypatch, tmp_path, 2, error)
    found = find(tmp_path)
    assert found.of_user
    assert "data.sources.eu: is missing" in found.why


@pytest.mark.parametrize(
    ("ranks", "suspected"),
    [
        ({"as-it-calls-itself.hsn.cm": [4, 5]}, ("x4204c5s2b0n1",)),
        ({"x4204c5s2b0n0": [3], "x4204c5s2b0n1": [4]}, ("x4204c5s2b0n0", "x4204c5s2b0n1")),
        ({"elsewhere": [12]}, ()),
        ({}, ()),
        ({f"x4204c5s2b0n{number}": [4 * number] for number in range(3)}, ()),  # all
    ],
)
def test_nodes_whose_numbers_are_not_finite_are_suspect_unless_all_are(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ranks: dict[str, list[int]],
    suspected: tuple[str, ...],
) -> None:
    error = NotFiniteError(step=7, tokens=3_072, cause="loss not finite", ranks=ranks)
    raise_in(monkeypatch, tmp_path, 0, error)
    nodes = tuple(f"x4204c5s2b0n{number}" for number in range(3))
    found = find(tmp_path, nodes=nodes)
    assert (found.nodes, found.of_node, found.of_user) == (suspected, True, False)
    assert found.bad_step == 7
    assert found.why.startswith("step 7, after 3,072 tokens: loss not")


def test_half_an_error_file_is_shown_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "error-7.json").write_text('{"message": {"mess')
    assert find(tmp_path).why == 'rank 7: {"message": {"mess'


def test_where_nobody_said_anything_the_status_is_told(tmp_path: Path) -> None:
    found = find(tmp_path, log="srun: error: jwb0001: tasks 0-3: Terminated\n")
    assert found.why == "exit status 1, and no rank said why"
    assert (found.nodes, found.of_node) == ((), False)


def test_a_node_without_a_copy_is_suspect_unless_no_node_has_one() -> None:
    nodes = ("x4204c5s2b0n0.hsn", "x4204c5s2b0n1.hsn")
    failed = {"x4204c5s2b0n1": "/tmp: 3 bytes are free, 9 are needed"}
    one = copies_failure(failed, nodes)
    assert one.why == "copies: x4204c5s2b0n1: /tmp: 3 bytes are free, 9 are needed"
    assert (one.nodes, one.of_node, one.of_user) == (nodes[1:], True, False)
    every = copies_failure({node.partition(".")[0]: "no room" for node in nodes}, nodes)
    assert (every.of_node, every.of_user) == (False, True)
