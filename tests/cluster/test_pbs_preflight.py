"""Nodes under PBS, run whole by a stand-in: a bad one and a mute one are named and left out."""

from pathlib import Path

import pytest

from tests.cluster import openpbs
from tests.cluster.planting import CLOCK, plant
from tests.cluster.test_pbs_chain import HERE, SMALL, home, machine, status, wait_until
from tests.cluster.test_preflight_life import verdict
from tests.life.conftest import act, entries

__all__ = ["home", "machine"]  # fixtures
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3_600)]

BUDGET = (
    *("budget.total_tokens=2_048", "checkpoint.every_tokens=1_024"),
    *("evaluation.every_tokens=2_048", "cluster.hours=0.5", "cluster.jobs=2"),
    "cluster.site.spare_seconds=60",
)
# Its clock is wrong, or its task ends before it has said a word.
PLANTED = f"""
import os
if os.environ["OPENPBS_NODE"] == "{{mute}}":
    os._exit(9)
{CLOCK}"""


@pytest.mark.long
def test_ranks_start_on_the_nodes_that_are_left_by_the_names_that_pbs_gives_them(
    home: Path, machine: str
) -> None:
    run = home / "bad"
    wrong, good, mute, other = openpbs.NODES
    text = PLANTED.format(mute=mute)
    venv = home / "venv"
    assert plant(venv, "OPENPBS_NODE", f"@({wrong}|{mute})", "sitecustomize.py", text)
    words = (*SMALL, *HERE, machine, *BUDGET, "cluster.spare_nodes=2")
    assert act(home, *words, "cluster.preflight.answer_seconds=60", f"run={run}") == 0
    wait_until(run, lambda: status(run).state == "finished" and not status(run).queued, 400)

    (job,) = status(run).jobs
    assert job.bad_nodes == (wrong, mute)
    event = verdict(run)
    assert event["evidence"]["excluded"] == {wrong: ["clock"], mute: ["answer"]}
    assert f"{wrong}: clock: +100." in event["cause"]
    started = (openpbs.folder() / "ranks").read_text().splitlines()
    assert started == [
        f"components.preflight {' '.join(openpbs.NODES)}",
        f"components.train {good} {other}",
    ]
    assert [entry["step"] for entry in entries(run, "step")] == [1, 2, 3, 4]
    said = (run / "jobs" / f"{job.job}.OU").read_text()
    assert "2 of 4 nodes are good, 2 are needed" in said
    log = (run / "ranks" / f"{job.job.partition('.')[0]}-preflight.log").read_text()
    assert f"{mute}: rank 2 exited with 9" in log
