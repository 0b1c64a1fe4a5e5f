"""Run history: measurements and events in the order of time, and the goodput.

This module alone reads ``metrics.jsonl`` and ``events.jsonl``. A kill leaves at most one
incomplete line in a file, which is skipped; more broken lines than kills are an error. A run
that resumes from or returns to a checkpoint computes steps twice: the history that led to the
last weights is kept, the rest is counted.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import merge
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from components.energy.counters import EnergyReading
from components.errors import RecipeError
from components.json_file import COPY_AGAIN, open_regular, parse_json
from components.run.records import (
    LINE_KINDS,
    HeldOutEvaluation,
    RunEvent,
    StepMetrics,
    check_record,
)
from components.run.step_table import StepTable

MOST_LINE_BYTES, BLOCK_BYTES = 4 << 20, 1 << 20
_VERSIONS = "the logs and this program must be of the same version"
_PREFLIGHT = "preflight"  # first event of a job, before its ranks start
_BEGINS = ("start", "resume")
_GO_BACK = (*_BEGINS, "roll_back")
# Events written outside of the run's processes, maybe much later: lost jobs, user actions.
_FROM_OUTSIDE = ("job_end", "exclusion", "rewind", "branch", "merge")
MEASURED_UNTIL = "measured_until"  # in the evidence of a start or resume
_MEASURED = ("step", "held_out")  # null in them means a non-finite number
_ENERGY = "energy"  # a running total that takes no time itself
_CAUSES = {
    **dict.fromkeys((*_BEGINS, _PREFLIGHT), "starting"),
    "held_out": "held-out losses",
    "checkpoint": "checkpoints",
    **dict.fromkeys(("skip", "lower_lr", "roll_back", "relaunch"), "guards"),
}
_BETWEEN, _AGAIN = "between processes", "steps computed again"
_LOST = ("starting", _BETWEEN, _AGAIN, "checkpoints", "held-out losses", "guards")


Line = tuple[str, dict[str, Any]]  # ("FILE:NUMBER", record)


def events_file(run: Path) -> Path:
    """Return the event log of a run folder, which earlier versions named ``journal.jsonl``."""
    earlier = run / "journal.jsonl"
    return earlier if earlier.exists() else run / "events.jsonl"


def log_files(run: Path) -> tuple[Path, Path]:
    """Return the files of a run's metrics and events."""
    return run / "metrics.jsonl", events_file(run)


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a file in their order; a missing file is empty."""
    return [record for _, record in _checked_lines(file, [])]


def run_lines(run: Path, broken: list[str]) -> Iterator[Line]:
    """Yield all complete lines of a run in time order. ``broken`` gets places of other lines.

    Measurements are streamed, because there is one per step. More broken lines than kills, or
    an invalid record, are a RecipeError.
    """
    files = log_files(run)
    places: dict[str, list[str]] = {file.name: [] for file in files}
    measured, events = (_checked_lines(file, places[file.name]) for file in files)
    events = iter(sorted(events, key=_time_of))
    begins = 0
    for line in merge(measured, events, key=_time_of):
        begins += line[1]["kind"] in _BEGINS
        yield line
    for file_places in places.values():
        if len(file_places) > max(1, begins):
            count = f"{len(file_places)} broken lines, but the run started only {begins} times"
            problem = f"is not JSON, and a killed process does not explain it: {count}"
            raise RecipeError(file_places[-1], problem, "repair or delete the line")
        broken += file_places


def _time_of(line: Line) -> float:
    return float(line[1]["time"])


def _checked_lines(file: Path, broken: list[str]) -> Iterator[Line]:
    """Yield each complete line, checked. Append the places of broken lines to ``broken``."""
    for where, record in stream_lines(file, broken):
        yield where, _check_line(record, where)


def _check_line(record: dict[str, Any], where: str) -> dict[str, Any]:
    check_record(record, LINE_KINDS.get(str(record.get("kind")), RunEvent), where, _VERSIONS)
    return record


def stream_lines(file: Path, broken: list[str]) -> Iterator[Line]:
    """Yield each line that contains a mapping. Append other lines' places to ``broken``."""
    with _opened(file) as stream:
        lines = iter(lambda: stream.readline(MOST_LINE_BYTES + 1), b"")
        for number, raw in enumerate(lines, 1):
            where = f"{file}:{number}"
            _check_length(raw, where)
            if (record := _parsed(raw)) is not None:
                yield where, record
            elif raw.strip():
                broken.append(where)


def lines_from_end(file: Path, *, skipped: tuple[bytes, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yield the records of a file lazily, last record first.

    Lines that start with one of ``skipped`` are not parsed, except for the first line of each
    block, which shows the caller how far back the block is.
    """
    where = f"{file}, a line near its end"
    with _opened(file) as stream:
        begin, rest = stream.seek(0, os.SEEK_END), b""
        while begin:
            end, begin = begin, max(0, begin - BLOCK_BYTES)
            stream.seek(begin)
            lines = (stream.read(end - begin) + rest).split(b"\n")
            rest = lines.pop(0) if begin else b""  # its start is in the previous block
            _check_length(rest, where)
            for number, raw in reversed([*enumerate(lines)]):
                is_parsed = number == 0 or not raw.startswith(skipped)
                if is_parsed and (record := _parsed(raw)) is not None:
                    yield _check_line(record, where)


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    """Open a file of lines; a missing file is empty."""
    if not file.exists() and not file.is_symlink():
        yield BytesIO()
        return
    try:
        with open_regular(file) as stream:
            yield stream
    except RecipeError:
        raise
    except (OSError, ValueError) as error:
        raise RecipeError(str(file), f"cannot be read: {error}", COPY_AGAIN) from None


def _check_length(raw: bytes, where: str) -> None:
    if len(raw) > MOST_LINE_BYTES:
        raise RecipeError(where, "is longer than any line of a run", COPY_AGAIN)


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        record = parse_json(raw, finite=False)
    except ValueError:  # also if a character is incomplete
        return None
    if not isinstance(record, dict):
        return None
    is_measured = b"null" in raw and record.get("kind") in _MEASURED
    return _with_nan(record) if is_measured else record


def _with_nan(record: Mapping[str, Any]) -> dict[str, Any]:
    """Replace null in a measurement by NaN. Non-finite numbers are written as null."""
    counts = {"step", "tokens"}
    return {
        key: _with_nan(value) if type(value) is dict
        else math.nan if value is None and key not in counts
        else value
        for key, value in record.items()
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Seconds from the first start to the last record, divided into progress and lost time."""

    wall_seconds: float
    progress_seconds: float
    lost_seconds: Mapping[str, float]  # "elsewhere": not in any step or event

    @property
    def held_seconds(self) -> float:
        """Time in which processes of the run occupied its devices, for any purpose."""
        return self.wall_seconds - self.lost_seconds[_BETWEEN]

    @property
    def progress_fraction(self) -> float | None:
        """The fraction of the time with progress; None before the first step."""
        return self.progress_seconds / self.wall_seconds if self.wall_seconds else None


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """History of a run: steps and evaluations by step, events in the order of time."""

    steps: StepTable
    held_out: tuple[HeldOutEvaluation, ...]
    events: tuple[RunEvent, ...]
    repeated_steps: int
    half_written_lines: int
    goodput: Goodput
    energy: Mapping[str, EnergyReading]  # of devices and hosts, including discarded steps

    def events_of(self, kind: str) -> tuple[RunEvent, ...]:
        return tuple(event for event in self.events if event.kind == kind)


def read_history(folder: Path) -> RunHistory:
    """Read the history of the run in ``folder``, as `run_lines`; a missing file is empty."""
    half_written: list[str] = []
    account = _Account()
    steps = StepTable()
    held_out: dict[int, HeldOutEvaluation] = {}
    events: list[RunEvent] = []
    energy: dict[str, EnergyReading] = {}
    repeated = 0
    for where, record in run_lines(folder, half_written):
        kind = record["kind"]
        if kind == "logged":
            continue
        account.add_record(record)
        if kind == _ENERGY:
            energy = {key: EnergyReading.from_json(record[key]) for key in ("devices", "hosts")}
        elif kind == "step":
            steps.insert_step(check_record(record, StepMetrics, where, _VERSIONS))
        elif kind == "held_out":
            held_out[record["step"]] = HeldOutEvaluation.model_validate(record)
        else:
            events.append(RunEvent.model_validate(record))
        if kind in _GO_BACK:  # discard what was computed after these weights
            lost = steps.remove_after(record["step"])
            account.lost[_AGAIN] += sum(lost)
            repeated += len(lost)
            held_out = {
                step: evaluation
                for step, evaluation in held_out.items()
                if step <= record["step"]
            }
    return RunHistory(
        steps=steps,
        held_out=tuple(held_out[step] for step in sorted(held_out)),
        events=tuple(events),
        repeated_steps=repeated,
        half_written_lines=len(half_written),
        goodput=account.compute_goodput(sum(steps.copy_column("seconds"))),
        energy=energy,
    )


def held_until(now: float, records: Iterable[Mapping[str, Any]]) -> float:
    """Return how long processes of a run occupied its devices, the last process until ``now``.

    ``records`` are the run's events in any order. The evidence of a start or resume contains
    the time of the last measurement before it. ``now`` is in seconds since the epoch.
    """
    account, events = _Account(), list(records)
    ends = (event.get("evidence", {}).get(MEASURED_UNTIL) for event in events)
    measured = [{"kind": "step", "seconds": 0.0, "time": end} for end in ends if end]
    for record in sorted((*events, *measured), key=lambda record: float(record["time"])):
        account.add_record(record)
    account.last = max(account.last, now)
    return account.compute_goodput(0.0).held_seconds


@dataclass(kw_only=True)
class _Account:
    """Account of time. Records are booked in time order; each ends at ``time``."""

    began: float | None = None
    last: float = 0.0
    last_kind: str = ""
    lost: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_LOST, 0.0))

    def add_record(self, record: Mapping[str, Any]) -> None:
        kind = record["kind"]
        if kind in _FROM_OUTSIDE or kind == _ENERGY:
            return
        if kind == "restart" and not record["evidence"]["restart"]:
            return  # a new job reports the end of an earlier job; the queue time is between
        time, seconds = record["time"], record["seconds"]
        if self.began is None:
            self.began = time - seconds
        elif kind in _BEGINS or kind == _PREFLIGHT:
            in_one_job = self.last_kind == _PREFLIGHT and kind != _PREFLIGHT
            gap = max(0.0, time - seconds - self.last)
            self.lost["starting" if in_one_job else _BETWEEN] += gap
        if kind in _CAUSES:
            self.lost[_CAUSES[kind]] += seconds
        self.last, self.last_kind = max(self.last, time), kind

    def compute_goodput(self, progress_seconds: float) -> Goodput:
        """Return the goodput, given the seconds of the steps that count."""
        wall = 0.0 if self.began is None else self.last - self.began
        rest = wall - progress_seconds - sum(self.lost.values())
        return Goodput(
            wall_seconds=wall,
            progress_seconds=progress_seconds,
            lost_seconds={**self.lost, "elsewhere": rest},
        )
