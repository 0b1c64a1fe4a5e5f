"""The files of a failed job name the rank that failed first, its node, and the cause."""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from torch.distributed.elastic.multiprocessing.errors.error_handler import ErrorHandler

from cluster.end import Failure, copies_failure, find_failure
from components.errors import RecipeError
from components.fault_tolerance.failures import CUT_SHORT
from components.fault_tolerance.soft_failure import NotFiniteError
from tests.cluster.programs import Patch

NODES = ("jwb0001", "jwb0002")
# Slurm 22.05 prints this when a rank is killed.
SRUN = """\
srun: error: jwb0002: task 5: Killed
srun: launch/slurm: _step_signal: Terminating StepId=1.0
slurmstepd-jwb0001: error: *** STEP 1.0 ON jwb0001 CANCELLED AT 2026-11-21T23:00:12 ***
srun: error: jwb0002: tasks 4,6-7: Terminated
srun: error: jwb0001: tasks 0-3: Terminated
"""
PALS = "x4204c5s2b0n0.hsn.cm.aurora.alcf.anl.gov: rank 1 died from signal 9\n"
CLOSED = RuntimeError("Connection closed by peer [127.0.0.1]:1234")
Raise = Callable[[int, Exception], None]


@pytest.fixture
def raises(monkeypatch: Patch, tmp_path: Path) -> Raise:
    """Write what torch's ``record`` writes when a rank raises; later calls are later."""

    def act(rank: int, error: Exception) -> None:
        file = tmp_path / f"error-{rank}.json"
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
        ErrorHandler().record_exception(error)
        later = len(list(tmp_path.iterdir()))
        os.utime(file, (later, later))

    return act


def find(ranks: Path, log: str = "", nodes: tuple[str, ...] = NODES) -> Failure:
    return find_failure(ranks=ranks, log=log, nodes=nodes, per_node=4, status=1)


def test_first_rank_to_raise_is_named_with_its_node(tmp_path: Path, raises: Raise) -> None:
    raises(6, ValueError("loss is NaN"))
    raises(0, ValueError("loss is NaN here too"))
    assert find(tmp_path) == Failure(why="rank 6: ValueError: loss is NaN", nodes=("jwb0002",))


def test_rank_that_lost_another_did_not_fail_first(tmp_path: Path, raises: Raise) -> None:
    raises(0, CLOSED)
    raises(1, IndexError("index out of range"))
    assert find(tmp_path).why == "rank 1: IndexError: index out of range"


def test_node_that_slurm_calls_lost_is_left_out(tmp_path: Path, raises: Raise) -> None:
    log = "srun: error: Node failure on jwb0002\nsrun: Job step aborted\n"
    raises(0, CLOSED)
    lost = Failure(why="node jwb0002 was lost", nodes=("jwb0002",), of_node=True)
    assert find(tmp_path, log) == lost
    raises(1, IndexError("index out of range"))
    assert find(tmp_path, log).why == "rank 1: IndexError: index out of range"


def hydra(*lines: str) -> str:
    return "".join(f"=   {line}\n" for line in lines)


def openmpi(program: str, rest: str) -> str:
    return (
        f"{program} noticed that process rank 5 with PID 0 on node jwb0002 exited on{rest}.\n"
    )


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (SRUN, "rank 5 on jwb0002: Killed"),
        (
            hydra("RANK 5 PID 99 RUNNING AT jwb0002", "KILLED BY SIGNAL: 9 (Killed)"),
            "rank 5 on jwb0002: KILLED BY SIGNAL: 9 (Killed)",
        ),
        (
            hydra("PID 99 RUNNING AT jwb0002", "EXIT CODE: 9", "CLEANING UP"),
            "a rank on jwb0002: EXIT CODE: 9",
        ),
        (
            openmpi("mpiexec", " signal 9 (Killed)"),
            "rank 5 on jwb0002: exited on signal 9 (Killed)",
        ),
        (
            openmpi("prterun", "\nsignal 7 (Bus error)"),
            "rank 5 on jwb0002: exited on signal 7 (Bus error)",
        ),
    ],
)
def test_killed_rank_is_known(tmp_path: Path, raises: Raise, log: str, why: str) -> None:
    raises(0, RuntimeError("Connection reset by peer"))
    assert find(tmp_path, log) == Failure(why=why, nodes=("jwb0002",), of_node=True)


def test_killed_rank_of_pals_is_known_by_short_name(tmp_path: Path) -> None:
    found = find(tmp_path, log=PALS, nodes=("x4204c5s2b0n0", "x4204c5s2b0n1"))
    assert found.why == f"rank 1 on {PALS.partition(':')[0]}: died from signal 9"
    assert (found.nodes, found.of_node) == (("x4204c5s2b0n0",), True)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: uncorrectable ECC error encountered",
        "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus",
        "level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
        "HIP error: no ROCm-capable device is detected",
        "HW Exception by GPU node-9 (Agent handle: 0x631351bb5a20) reason :GPU Hang",
    ],
)
def test_broken_device_makes_its_node_suspect(tmp_path: Path, raises: Raise, text: str) -> None:
    raises(3, RuntimeError(text))
    found = find(tmp_path)
    assert (found.nodes, found.of_node) == (("jwb0001",), True)


def test_mistake_in_the_recipe_is_the_users(tmp_path: Path, raises: Raise) -> None:
    raises(2, RecipeError("data.sources.eu", "is missing", "prepare it again"))
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
def test_nodes_with_numbers_not_finite_are_suspect_unless_all_are(
    tmp_path: Path, raises: Raise, ranks: dict[str, list[int]], suspected: tuple[str, ...]
) -> None:
    raises(0, NotFiniteError(step=7, tokens=3_072, cause="loss not finite", ranks=ranks))
    found = find(tmp_path, nodes=tuple(f"x4204c5s2b0n{number}" for number in range(3)))
    assert (found.nodes, found.of_node, found.of_user) == (suspected, True, False)
    assert found.bad_step == 7
    assert found.why.startswith("step 7, after 3,072 tokens: loss not")


FULL = RecipeError("/r/checkpoints", "cannot be written: no space", "make room")


def test_error_file_that_a_full_disk_cut_ends_the_chain(tmp_path: Path, raises: Raise) -> None:
    """Wherever it is cut: the exit status shows that a person has to act."""
    raises(6, FULL)
    whole = (tmp_path / "error-6.json").read_bytes()
    raises(1, RuntimeError("Connection closed by peer"))
    log = "srun: error: jwb0002: tasks 4-7: Exited with exit code 2\n"
    for size in range(len(whole) + 1):
        (tmp_path / "error-6.json").write_bytes(whole[:size])
        found = find(tmp_path, log)
        assert (found.nodes, found.of_node, found.of_user) == (("jwb0002",), False, True)
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
)
def test_full_memory_is_the_nodes_fault_on_one_node_with_the_usual_work(
    tmp_path: Path, raises: Raise, log: str, why: str, of_node: bool
) -> None:
    raises(2, RuntimeError("Connection closed by peer"))
    found = find(tmp_path, log)
    assert found.why.startswith(why)
    assert (found.of_node, found.of_user) == (of_node, False)


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: Task launch for StepId=7.0 failed on node jwb0002: Communication failure",
        "srun: error: task 6 launch failed: Slurmd could not execve job",
        "srun: error: slurm_receive_msgs: [[jwb0002.juwels]:6818] failed: Socket timed out",
        "srun: error: slurm_msg_recv: slurm_recv_timeout from jwb0002: Zero Bytes",
        "srun: error: Prolog hung on node jwb0002",
        "launch failed on jwb0002: Couldn't exec python: No such file or directory",
        "ping failed on jwb0002.hsn.cm: Couldn't forward RPC: No route to host",
        "[proxy:0:1@jwb0002] HYDU_create_process: execvp error on file python",
        "ssh: connect to host jwb0002 port 22: Connection refused",
    ],
)
def test_node_that_starts_no_ranks_is_left_out(tmp_path, raises, line):
    raises(0, RuntimeError("Timed out after 1800 s waiting for clients"))
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
        "mpiexec: Error: tm_spawn: no such host",
        "Host key verification failed.",
        "[mpiexec@jwb0001] HYDU_sock_write (sock.c:256): write error (Bad file descriptor)",
        "ORTE was unable to reliably start one or more daemons.",
    ],
)
def test_complaint_of_the_launcher_is_a_reason(tmp_path, raises, line):
    log = f"step 1\nsrun: warning: cannot\n{line}\nsrun: error: jwb0001: task 0: Terminated\n"
    found = find(tmp_path, log)
    assert (found.why, found.nodes) == (f"exit status 1, and {line}", ())
    raises(0, RuntimeError("Connection closed by peer"))
    found = find(tmp_path, log)
    assert found.why == f"{line}; rank 0: RuntimeError: Connection closed by peer"
    assert not found.of_node
    raises(0, KeyError("own"))
    assert find(tmp_path, log).why == "rank 0: KeyError: 'own'"


def test_any_output_of_a_launcher_can_be_read(tmp_path: Path) -> None:
    random = Random(0)
    words = [*SRUN.split(), *MEMORY.split(), *PALS.split(), "=", "\n", "\0", "task"]
    for _ in range(300):
        log = random.choice((" ", "")).join(random.choices(words, k=60))
        assert find(tmp_path, log).why


def test_exit_status_is_the_reason_without_any_other_message(tmp_path: Path) -> None:
    found = find(tmp_path, log="srun: error: jwb0001: tasks 0-3: Terminated\n")
    assert found == Failure(why="exit status 1, and no rank reported an error")


def test_node_without_a_copy_is_suspect_unless_no_node_has_one() -> None:
    nodes = ("x4204c5s2b0n0.hsn", "x4204c5s2b0n1.hsn")
    failed = {"x4204c5s2b0n1": "/tmp: 3 bytes are free, 9 are needed"}
    one = copies_failure(failed, nodes)
    assert one.why == "copies: x4204c5s2b0n1: /tmp: 3 bytes are free, 9 are needed"
    assert (one.nodes, one.of_node, one.of_user) == (nodes[1:], True, False)
    every = copies_failure({node.partition(".")[0]: "no room" for node in nodes}, nodes)
    assert (every.of_node, every.of_user) == (False, True)
