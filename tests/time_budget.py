"""A pytest plugin that ends a run of tests in time.

    python -m pytest -p tests.time_budget --time-budget=SECONDS --time-record=NAME

When the budget is spent, no further test starts, and a test that still runs after the grace
period is interrupted. Both are skipped, listed at the end, and written to a record in the
user's cache. The next run starts with the tests of the record. Without a record the files are
rotated by the commit's hash, so that in the long term all of them run.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
GRACE_SECONDS = 240.0
NOT_RUN = "not_run"  # the property of a report, with how far the test came
INTERRUPTED, NOT_STARTED = "interrupted", "not started"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("time budget")
    group.addoption("--time-budget", type=float, metavar="SECONDS")
    group.addoption("--time-grace", type=float, default=GRACE_SECONDS, metavar="SECONDS")
    group.addoption("--time-record", default="tests", metavar="NAME")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.time_budget is not None:
        config.option.loadscopereorder = False  # xdist: keep the order of the files
        config.pluginmanager.register(TimeBudget(config))


class TimeBudget:
    """Skip what the budget has no time for. Each xdist worker has an instance of its own."""

    def __init__(self, config: pytest.Config) -> None:
        self.budget: float = config.option.time_budget
        self.deadline = time.monotonic() + self.budget
        self.grace: float = config.option.time_grace
        self.is_worker = hasattr(config, "workerinput")
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.record = Path(cache) / "kochbuch" / f"not_run.{config.option.time_record}"
        self.not_run: dict[str, str] = {}
        self.running: pytest.Item | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        files = list(dict.fromkeys(item.path for item in items))
        try:
            recorded = self.record.read_text("utf-8").splitlines()
        except OSError:
            start = find_rotation() % max(1, len(files))
            files = files[start:] + files[:start]
            recorded = []
        places = {name: place for place, name in enumerate(recorded)}
        last = len(places)
        file_places = {file: last + place for place, file in enumerate(files)}
        for item in items:
            place = places.get(item.nodeid, file_places[item.path])
            file_places[item.path] = min(file_places[item.path], place)
        items.sort(key=lambda one: (file_places[one.path], places.get(one.nodeid, last)))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Interrupt the test when the grace period is over, if this is the main thread."""
        left = self.deadline + self.grace - time.monotonic()
        main = threading.get_ident()
        timer = threading.Timer(left, signal.pthread_kill, (main, signal.SIGUSR1))
        timer.daemon = True
        previous = signal.signal(signal.SIGUSR1, self.interrupt)
        timer.start()
        try:
            return (yield)
        finally:
            timer.cancel()
            timer.join()
            signal.signal(signal.SIGUSR1, previous)

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside pytest's own, which must see a skip
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        if time.monotonic() >= self.deadline:
            self.skip(item, NOT_STARTED)
        self.running = item
        try:
            return (yield)
        finally:
            self.running = None

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self.running = item
        try:
            return (yield)
        finally:
            self.running = None

    def interrupt(self, *_: Any) -> None:
        if self.running is not None:  # never in a teardown
            self.skip(self.running, INTERRUPTED)

    def skip(self, item: pytest.Item, state: str) -> None:
        item.user_properties.append((NOT_RUN, state))
        pytest.skip(f"the time budget of {self.budget:.0f} s is spent")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that did not run; with xdist the reports of all workers come here."""
        if report.skipped:
            for name, state in report.user_properties:
                if name == NOT_RUN:
                    self.not_run[report.nodeid] = str(state)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write the record; a test that is too long for every run comes after all others."""
        if not self.is_worker:
            names = sorted(self.not_run, key=lambda name: self.not_run[name] == INTERRUPTED)
            self.record.parent.mkdir(parents=True, exist_ok=True)
            self.record.write_text("".join(f"{name}\n" for name in names), "utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.not_run:
            terminalreporter.section(f"{len(self.not_run)} tests did not run within the budget")
            for name, state in self.not_run.items():
                terminalreporter.line(f"{state}: {name}")


def find_rotation() -> int:
    """Return a number that differs between commits."""
    git = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return int(git.stdout or "0", 16)
