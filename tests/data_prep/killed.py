"""Kill preparations and repeat them: ``python -m tests.data_prep.killed ROUNDS``.

Each round kills a worker, the command, or all processes at a random moment of a random stage.
The final result must equal the result of an undisturbed preparation.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VICTIMS = ("worker", "command", "group")
POOLS = ("clean", "keep", "tokens")  # stages of several tasks; the others have one
STAGES = ("clean", "duplicates", "keep", "tokenizer", "tokens")
TASKS = 12  # fewer than the tasks of the corpus
GONE_WITHIN_SECONDS = 3.0

Process = subprocess.Popen[str]


def start(texts: Path, root: Path) -> Process:
    """Start a preparation with two workers in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.data_prep.prepare_corpus", str(texts), str(root)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: Process) -> str:
    """Return the digest of the result."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out.strip()


def play(texts: Path, root: Path, victim: str, work: str, done: int) -> str:
    """Kill the victim after ``done`` tasks of a stage, finish, and return the digest."""
    process = start(texts, root)
    wait_for_tasks(process, root, work, done)
    workers = list(workers_of(process.pid))
    if victim == "worker":
        for pid in workers[:1]:  # no worker is left if all tasks are done
            kill(pid)
        return finish(process)
    if victim == "group":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        kill(process.pid)
    process.wait()
    wait_until_gone(workers)
    process.communicate()
    return finish(start(texts, root))


def wait_for_tasks(process: Process, root: Path, work: str, done: int) -> None:
    """Wait until ``done`` tasks of the stage have a record, or the process has ended."""
    while process.poll() is None and (
        not list(root.glob(f"{work}-*/plan.json"))
        or done > len(list(root.glob(f"{work}-*/[0-9]*[0-9].json")))
    ):
        time.sleep(0.002)


def workers_of(parent: int) -> Iterator[int]:
    """Find the processes of the pool."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            ppid = int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
        except OSError:
            continue  # it has ended
        if ppid == parent and b"spawn_main" in words:
            yield int(folder.name)


def wait_until_gone(pids: list[int]) -> None:
    """Assert that no worker outlives its command."""
    end = time.monotonic() + GONE_WITHIN_SECONDS
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < end, f"workers outlived their command: {left}"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def kill(pid: int) -> None:
    if is_running(pid):
        os.kill(pid, signal.SIGKILL)


def rounds(texts: Path, folder: Path, number: int, seed: int) -> Iterator[tuple[str, str, str]]:
    """Play rounds with alternating victims; yield victim, stage and digest."""
    draw = random.Random(seed)
    for turn in range(number):
        victim = VICTIMS[turn % len(VICTIMS)]
        work = draw.choice(POOLS if victim == "worker" else STAGES)
        done = draw.randrange(TASKS) if work in POOLS else 0
        yield victim, work, play(texts, folder / str(turn), victim, work, done)


def main() -> int:
    """Play the given number of rounds and print their results."""
    from tests.data_prep.corpora import write_corpus

    with tempfile.TemporaryDirectory(prefix="killed-") as name:
        folder = Path(name)
        write_corpus(folder / "texts")
        expected = finish(start(folder / "texts", folder / "whole"))
        wrong = 0
        for victim, work, digest in rounds(folder / "texts", folder, int(sys.argv[1]), seed=1):
            same = digest == expected
            wrong += not same
            sys.stdout.write(
                f"{victim} killed in {work}: {'same' if same else 'OTHER'} result\n"
            )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
