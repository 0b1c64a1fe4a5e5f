"""Processes that make no progress: real ones, for nothing else ends by itself."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from components.fault_tolerance.hang import HUNG, LAST_SECONDS, list_stacks

LIMIT_SECONDS = 0.5
PROGRAM = """
import sys, time
from pathlib import Path
from components.fault_tolerance.faults import hang
from components.fault_tolerance.hang import HangWatch, WatchedWork
from components.config.schema.monitoring import HangFault

waits_in = sys.argv[3] or None
watch = HangWatch(
    folder=Path(sys.argv[1]),
    rank=3,
    collectives=lambda: (waits_in, {"entries": [1, 2]}),
    on_hang=lambda work, text, report: Path(sys.argv[1], "said").write_text(text),
)
for step in range(4):  # each in time, all together not
    watch.watch_work(WatchedWork(f"step {step}", step, step * 10, float(sys.argv[4])))
    time.sleep(float(sys.argv[4]) / 2)
if sys.argv[2] == "ends":
    watch.stop_watching()
    time.sleep(float(sys.argv[4]) + 0.3)
    sys.exit(0)
watch.watch_work(WatchedWork("step 7", 6, 60, float(sys.argv[4])))
print("began", flush=True)
hang(HangFault(fault="hang", rank=3, step=7, how=sys.argv[2]), None)
"""


def run(folder: Path, how: str, waits_in: str = "") -> tuple[int, float]:
    """Return exit status and how long after the limit the process ended."""
    words = [sys.executable, "-c", PROGRAM, str(folder), how, waits_in, str(LIMIT_SECONDS)]
    with folder.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    process.stdout.readline()
    began = time.monotonic()
    status = process.wait(300)
    process.stdout.close()
    return status, time.monotonic() - began - LIMIT_SECONDS


@pytest.mark.long
def test_a_sleeping_process_writes_its_stacks_and_ends_with_its_status(tmp_path: Path) -> None:
    status, late = run(tmp_path, "sleeps")
    assert status == HUNG
    assert late < 2
    report = json.loads((tmp_path / "step-7" / "rank-3.json").read_text())
    assert any("in hang" in line for line in report["stacks"])
    assert report["collectives"] == {"entries": [1, 2]}
    assert (report["work"], report["waits_in"]) == ("step 7", None)
    said, where = (tmp_path / "said").read_text(), f"{tmp_path}/step-7/rank-3.json"
    assert said.startswith(f"step 7 took more than {LIMIT_SECONDS} s; rank 3 on ")
    assert said.endswith(f"is in no collective; its stacks are in {where}")


@pytest.mark.long
def test_a_process_that_holds_the_interpreter_lock_writes_its_stack(tmp_path: Path) -> None:
    status, late = run(tmp_path, "holds")
    assert status == 1  # what faulthandler ends a process with
    assert late < 2
    assert " in hang\n" in tmp_path.with_suffix(".log").read_text()
    assert not (tmp_path / "step-7").exists()


@pytest.mark.long
def test_a_waiting_rank_ends_after_the_hung_rank(tmp_path: Path) -> None:
    status, late = run(tmp_path, "sleeps", "gloo:all_reduce")
    assert status == HUNG
    assert 1 < late < 2
    assert "waits for other ranks in gloo:all_reduce; " in (tmp_path / "said").read_text()
    assert late < LAST_SECONDS + 0.5


@pytest.mark.long
def test_a_process_within_its_limit_is_not_ended(tmp_path: Path) -> None:
    assert run(tmp_path, "ends")[0] == 0
    assert tmp_path.with_suffix(".log").read_text() == ""


def test_stacks_name_the_innermost_call_first() -> None:
    lines = list_stacks()
    (here,) = (number for number, line in enumerate(lines) if line.endswith(" in list_stacks"))
    assert "thread" in lines[here - 1].lower()  # other threads may come before ours
    assert "test_stacks_name" in lines[here + 1]


# Rank 0 goes in at once and is asked from a thread of its own; rank 1 comes when it was.
ASKED = """
import os, sys, threading, time
from pathlib import Path
import torch
import torch.distributed as dist
from components.fault_tolerance.hang import last_collectives, record_collectives
from components.distributed.collectives import make_exchange, make_gather

folder, rank, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
record_collectives(100)
store = dist.FileStore(str(folder / "store"), 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
rows = torch.ones(4, 3)


def ask():
    time.sleep(0.5)
    waits_in, recorded = last_collectives()
    (folder / "said").write_text(str(waits_in))


def send():
    way = make_exchange([1, 3], [1, 3], dist.group.WORLD) if how == "exchange" else None
    return (way or make_gather(dist.group.WORLD)).async_start(rows)


asked = threading.Thread(target=ask)
if rank == 0:
    asked.start()
    departed = send()
    if how == "computes":
        asked.join()
    departed.async_wait()
    asked.join()
else:
    while not (folder / "said").exists():
        time.sleep(0.05)
    rows = torch.ones(4, 3)
    way = make_exchange([3, 1], [3, 1], dist.group.WORLD)
    (way.async_start(rows) if how == "exchange" else send()).async_wait()
dist.destroy_process_group()
os._exit(0)  # as ranks end: torch aborts now and then where its threads outlive the interpreter
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "waits_in"),
    [("exchange", "gloo:all_to_all"), ("gather", "gloo:all_gather"), ("computes", "None")],
)
def test_the_recorder_names_the_collective_that_a_rank_waits_in(tmp_path, how, waits_in):
    ranks = [
        subprocess.Popen([sys.executable, "-c", ASKED, str(tmp_path), str(rank), how])
        for rank in range(2)
    ]
    assert [rank.wait(600) for rank in ranks] == [0, 0]
    assert (tmp_path / "said").read_text() == waits_in
