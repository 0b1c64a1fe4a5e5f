"""The energy that a run measures, on a host with a counter of known power and without."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from components.run.history import read_history
from components.train import fit
from tests.components.energy.sysfs import write_zone
from tests.life.conftest import TINY, entries, forget_the_end

WATTS = 150.0
# The counter is written about 200 times a second, for runs of seconds, on a busy host.
TOLERANCE = 0.1


@pytest.fixture
def powered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace the host's energy counter with a counter that increases by `WATTS`."""
    file = write_zone(tmp_path, "intel-rapl:0", "package-0")
    monkeypatch.setattr(fit, "SYSFS", tmp_path)
    began, over = time.monotonic(), threading.Event()

    def spend() -> None:
        while not over.wait(0.005):
            new = file.with_suffix(".new")
            new.write_text(f"{round(WATTS * (time.monotonic() - began) * 1e6)}\n")
            new.replace(file)

    thread = threading.Thread(target=spend)
    thread.start()
    yield
    over.set()
    thread.join()


def energy(run: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((run / "results.json").read_text())
    return dict(results["energy"])


@pytest.mark.long
def test_a_run_measures_the_power_of_its_host_also_after_a_resume(home, program, powered):
    run = home / "powered"
    program(*TINY, "watchdog.every_steps=5", f"run={run}")
    first = energy(run)
    assert first["hosts"]["watts"] == pytest.approx(WATTS, rel=TOLERANCE)
    assert first["hosts"]["counted_fraction"] == pytest.approx(1)
    assert [one["step"] for one in entries(run, "energy")] == [5, 10, 15, 20, 24]
    program(f"resume={forget_the_end(run)}")
    both = energy(run)
    assert both["hosts"]["joules"] > 1.1 * first["hosts"]["joules"]
    assert both["hosts"]["watts"] == pytest.approx(WATTS, rel=TOLERANCE)
    # The resumed process starts a new count, and its seconds are the seconds of its steps.
    seconds = [one["hosts"]["passed_seconds"] for one in entries(run, "energy")]
    assert seconds == sorted(seconds)
    assert read_history(run).energy["hosts"].energy_kwh == both["hosts"]["joules"] / 3.6e6


@pytest.mark.long
def test_a_run_without_counters_reports_no_energy(home, program, tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "SYSFS", tmp_path)
    run = home / "unmeasured"
    stderr = program(*TINY, f"run={run}").stderr
    assert "not measured" not in stderr  # a CPU has no counter of its own
    measured = energy(run)
    assert (measured["devices"]["joules"], measured["joules_per_token"]) == (None, None)
    assert measured["devices"]["source"] == "a CPU's energy is its host's"
    assert measured["hosts"]["joules"] is None
    assert measured["hosts"]["source"] == f"no counter: no RAPL below {tmp_path}/class/powercap"
    assert "<td>not measured</td>" in (run / "report.html").read_text("utf-8")
