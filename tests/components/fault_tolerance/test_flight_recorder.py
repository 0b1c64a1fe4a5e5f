"""What a rank says it waits in, asked while two real ranks are at it."""

import subprocess
import sys
from pathlib import Path

import pytest

# Rank 0 goes in at once and is asked from a thread of its own; rank 1 comes when it was.
PROGRAM = """
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
def test_a_rank_waits_in_what_has_departed_once_it_asks_for_the_arrival(
    tmp_path: Path, how: str, waits_in: str
) -> None:
    ranks = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path), str(rank), how])
        for rank in range(2)
    ]
    assert [rank.wait(600) for rank in ranks] == [0, 0]
    assert (tmp_path / "said").read_text() == waits_in
