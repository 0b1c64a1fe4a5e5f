"""What a failed job left tells which rank failed first, where, and whether it is the node's."""

import os
from pathlib import Path
from random import Random

import pytest
from torch.distributed.elastic.multiprocessing.errors.error_handler import ErrorHandler

from cluster.end import Failure, copies_failure, find_failure
from components.errors import RecipeError
from components.fault_tolerance.failures import CUT_SHORT
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


FULL = RecipeError("/r/checkpoints", "cannot be written: no space", "make room")


def test_an_error_file_that_a_full_disk_cut_costs_no_other_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is cut: the exit status shows that a person has to act."""
    raise_in(monkeypatch, tmp_path, 6, FULL)
    whole = (tmp_path / "error-6.json").read_bytes()
    raise_in(monkeypatch, tmp_path, 1, RuntimeError("Connection closed by peer"))
    log = "srun: error: jwb0002: tasks 4-7: Exited with exit code 2\n"
    for size in range(len(whole) + 1):
        (tmp_path / "error-6.json").write_bytes(whole[:size])
        found = find(tmp_path, log)
        assert found.nodes == ("jwb0002",)
        assert not found.of_node
        assert found.of_user
        assert "{" not in found.why
        if size < whole.index(b"RecipeError"):
            assert found.why.endswith(f"rank 6: {CUT_SHORT}")
    (tmp_path / "error-6.json").write_bytes(b"")
    assert not find(tmp_path, log.replace("code 2", "code 1")).of_user
    assert find(tmp_path, log).why == f"rank 6: {CUT_SHORT}"


MEMORY = "srun: error: jwb0002: task 5: Out Of Memory\n"
STEP = "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step..\n"
FIRST, OTHER = (
    MEMORY.replace("jwb0002: task 5", f"jwb0001: {task}") for task in ("tasks 0-1", "task 1")
)


@pytest.mark.parametrize(
    ("log", "why", "of_node"),
    [
        (MEMORY, "rank 5 on jwb0002: Out Of Memory", True),
        (FIRST, "rank 0 on jwb0001: Out Of", False),
        (MEMORY + OTHER, "rank 5 on jwb0002: O", False),
        (STEP + SRUN, "rank 5 on jwb0002: Killed (its node ran out of memory)", True),
    ],
)  # fmt: skip
def test_memory_that_was_full_is_the_node_s_where_it_was_so_on_one_that_has_the_usual_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, why: str, of_node: bool
) -> None:
    raise_in(monkeypatch, tmp_path, 2, RuntimeError("Connection closed by peer"))
    found = find(tmp_path, log)
    assert found.why.startswith(why)
    assert (found.of_node, found.of_user) == (of_node, False)


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: Task launch for StepId=7.0 failed on node jwb0002: Communication failure",
        "srun: error: Task launch for 7.0 failed on node jwb0002: Invalid job credential",
        "srun: error: Task launch for StepId=7.0 failed on node jwb0002: Job prolog failed",
        "srun: error: task 6 launch failed: Slurmd could not execve job",
        "srun: error: slurm_receive_msgs: [[jwb0002.juwels]:6818] failed: Socket timed out",
        "srun: error: slurm_msg_recv: slurm_recv_timeout from jwb0002: Zero Bytes",
        "srun: error: Prolog hung on node jwb0002",
        "launch failed on jwb0002: Couldn't exec python: No such file or directory",
        "ping failed on jwb0002.hsn.cm: Couldn't forward RPC: No route to host",
        "[proxy:0:1@jwb0002] HYDU_create_process: execvp error on file python",
        "ssh: connect to host jwb0002 port 22: Connection refused",
    ],
)  # fmt: skip
def test_a_node_that_starts_no_ranks_is_left_out_whatever_the_others_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    raise_in(
        monkeypatch, tmp_path, 0, RuntimeError("Timed out after 1800 s waiting for clients")
    )
    noise = "srun: launch/slurm: _step_signal: Terminating\nsrun: Job step aborted: Waiting\n"
    found = find(tmp_path, f"{noise}{line}\nsrun: error: jwb0001: tasks 0-3: Terminated\n")
    assert (found.why, found.nodes, found.of_node) == (line, ("jwb0002",), True)
    both = line + "\n" + line.replace("jwb0002", "jwb0001").replace("task 6", "task 1")
    assert not find(tmp_path, both).of_node


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: Unable to create step for job 7: Requested nodes are busy",
        "srun: error: Application launch failed: Communication connection failure",
        "srun: fatal: SLURM_MEM_PER_CPU and SLURM_MEM_PER_NODE are mutually exclusive.",
        "slurmstepd: error: execve(): python: No such file or directory",
        "slurmstepd-jwb0002: error: Detected 1 oom_kill event in StepId=7.batch.",
        "=>> PBS: job killed: mem 129kb exceeded limit 128kb",
        "=>> PBS: job killed: cput 3601 exceeded limit 3600",
        "mpiexec: Error: tm_spawn: no such host",
        "Host key verification failed.",
        "[mpiexec@jwb0001] HYDU_sock_write (sock.c:256): write error (Bad file descriptor)",
        "ORTE was unable to reliably start one or more daemons.",
    ],
)
def test_what_the_launcher_complains_of_is_the_reason_where_no_rank_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    log = f"step 1\nsrun: warning: cannot\n{line}\nsrun: error: jwb0001: task 0: Terminated\n"
    found = find(tmp_path, log)
    assert (found.why, found.nodes) == (f"exit status 1, and {line}", ())
    raise_in(monkeypatch, tmp_path, 0, RuntimeError("Connection closed by peer"))
    found = find(tmp_path, log)
    assert found.why == f"{line}; rank 0: RuntimeError: Connection closed by peer"
    assert not found.of_node
    raise_in(monkeypatch, tmp_path, 0, KeyError("own"))
    assert find(tmp_path, log).why == "rank 0: KeyError: 'own'"


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (
            "=   RANK 5 PID 99 RUNNING AT jwb0002\n=   KILLED BY SIGNAL: 9 (Killed)\n",
            "rank 5 on jwb0002: KILLED BY SIGNAL: 9 (Killed)",
        ),
        (
            "=   PID 99 RUNNING AT jwb0002\n=   EXIT CODE: 9\n=   CLEANING UP\n",
            "a rank on jwb0002: EXIT CODE: 9",
        ),
        (
            "mpiexec noticed that process rank 5 with PID 0 on node jwb0002 exited on "
            "signal 9 (Killed).\n",
            "rank 5 on jwb0002: exited on signal 9 (Killed)",
        ),
        (
            "prterun noticed that process rank 5 with PID 0 on node jwb0002 exited on\n"
            "signal 7 (Bus error).\n",
            "rank 5 on jwb0002: exited on signal 7 (Bus error)",
        ),
    ],
)  # fmt: skip
def test_a_killed_rank_is_known_from_any_launcher(tmp_path: Path, log: str, why: str) -> None:
    found = find(tmp_path, log)
    assert (found.why, found.nodes, found.of_node) == (why, ("jwb0002",), True)


def test_no_output_of_a_launcher_is_an_error_of_its_reader(tmp_path: Path) -> None:
    random, words = (
        Random(0),
        [*SRUN.split(), *MEMORY.split(), *PALS.split(), "=", "\n", "\0", "task"],
    )
    for _ in range(300):
        log = random.choice((" ", "")).join(random.choices(words, k=60))
        assert find(tmp_path, log).why


def test_where_nobody_said_anything_the_status_is_told(tmp_path: Path) -> None:
    found = find(tmp_path, log="srun: error: jwb0001: tasks 0-3: Terminated\n")
    assert found.why == "exit status 1, and no rank reported an error"
    assert (found.nodes, found.of_node) == ((), False)


def test_a_node_without_a_copy_is_suspect_unless_no_node_has_one() -> None:
    nodes = ("x4204c5s2b0n0.hsn", "x4204c5s2b0n1.hsn")
    failed = {"x4204c5s2b0n1": "/tmp: 3 bytes are free, 9 are needed"}
    one = copies_failure(failed, nodes)
    assert one.why == "copies: x4204c5s2b0n1: /tmp: 3 bytes are free, 9 are needed"
    assert (one.nodes, one.of_node, one.of_user) == (nodes[1:], True, False)
    every = copies_failure({node.partition(".")[0]: "no room" for node in nodes}, nodes)
    assert (every.of_node, every.of_user) == (False, True)
