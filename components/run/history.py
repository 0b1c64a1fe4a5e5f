"""Run history: measurements and events in the order of time, and the goodput.

``metrics.jsonl`` and ``journal.jsonl`` have this one reader. A kill leaves one half line in a
file at most, and it is left out; more of them than kills are damage, and refused where people
ask. A run goes on from a checkpoint, or goes back to one, and computes steps twice: kept is the
history that led to the last weights, and the rest is counted.
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
FILES = ("metrics.jsonl", "journal.jsonl")
_VERSIONS = "the journal and this program must be of the same version"
_PREFLIGHT = "preflight"  # with it a job begins, and its ranks start after it
_BEGINS = ("start", "resume")
_GO_BACK = (*_BEGINS, "roll_back")
# No process of the run tells them: of a lost job, or of what a user did, much later.
_FROM_OUTSIDE = ("job_end", "exclusion", "rewind", "branch", "merge")
MEASURED_UNTIL = "measured_until"  # in the evidence of a start or resume
_MEASURED = ("step", "held_out")  # their null is a number that is not finite
_ENERGY = "energy"  # a sum so far, which took no time of its own
_CAUSES = {
    **dict.fromkeys((*_BEGINS, _PREFLIGHT), "starting"),
    "held_out": "held-out losses",
    "checkpoint": "checkpoints",
    **dict.fromkeys(("skip", "lower_lr", "roll_back", "relaunch"), "guards"),
}
_BETWEEN, _AGAIN = "between processes", "steps computed again"
_LOST = ("starting", _BETWEEN, _AGAIN, "checkpoints", "held-out losses", "guards")


Line = tuple[str, dict[str, Any]]  # file and number, and the record


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Read the whole lines of a file, in their order; a file that is not there has none.

    Raises:
        RecipeError: it is no file of lines, or a line is no record of a run.
    """
    return [record for _, record in _checked_lines(file, [])]


def run_lines(run: Path, broken: list[str]) -> Iterator[Line]:
    """Yield all whole lines of a run in the order of time; ``broken`` gets the others' places.

    Measurements are not held in memory: there is one for each step.

    Raises:
        RecipeError: more broken lines than kills, or a line that is no record.
    """
    places: dict[str, list[str]] = {name: [] for name in FILES}
    measured = _checked_lines(run / FILES[0], places[FILES[0]])
    events = sorted(_checked_lines(run / FILES[1], places[FILES[1]]), key=_time_of)
    begins = 0
    for line in merge(measured, events, key=_time_of):
        begins += line[1]["kind"] in _BEGINS
        yield line
    for of_file in places.values():
        if len(of_file) > max(1, begins):
            such = f"{len(of_file)} such lines of a run that began {begins} times"
            problem = f"is not JSON, and no kill explains it: {such}"
            raise RecipeError(of_file[-1], problem, "repair or delete the line")
        broken += of_file


def _time_of(line: Line) -> float:
    return float(line[1]["time"])


def _checked_lines(file: Path, broken: list[str]) -> Iterator[Line]:
    """Yield each whole line, and collect the places of the broken ones."""
    for where, record in stream_lines(file, broken):
        yield where, _check_line(record, where)


def _check_line(record: dict[str, Any], where: str) -> dict[str, Any]:
    check_record(record, LINE_KINDS.get(str(record.get("kind")), RunEvent), where, _VERSIONS)
    return record


def stream_lines(file: Path, broken: list[str]) -> Iterator[Line]:
    """Yield each line that holds a mapping; ``broken`` gets the places of the others.

    Raises:
        RecipeError: the file cannot be read, or is none of lines.
    """
    with _opened(file) as stream:
        read = iter(lambda: stream.readline(MOST_LINE_BYTES + 1), b"")
        for number, raw in enumerate(read, 1):
            where = f"{file}:{number}"
            _check_length(raw, where)
            if (record := _parsed(raw)) is not None:
                yield where, record
            elif raw.strip():
                broken.append(where)


def lines_from_end(file: Path, *, skipped: tuple[bytes, ...] = ()) -> Iterator[dict[str, Any]]:
    """Yield the records of a file, the last one first, and read no more than is asked for.

    Lines that start with one of ``skipped`` are not parsed, except for the first line of each
    block, which tells a caller how far back it is.

    Raises:
        RecipeError: the file cannot be read, or a line that is parsed is no record of a run.
    """
    where = f"{file}, a line near its end"
    with _opened(file) as stream:
        begin, rest = stream.seek(0, os.SEEK_END), b""
        while begin:
            end, begin = begin, max(0, begin - BLOCK_BYTES)
            stream.seek(begin)
            lines = (stream.read(end - begin) + rest).split(b"\n")
            rest = lines.pop(0) if begin else b""  # its beginning is in the block before
            _check_length(rest, where)
            for number, raw in reversed([*enumerate(lines)]):
                is_parsed = number == 0 or not raw.startswith(skipped)
                if is_parsed and (record := _parsed(raw)) is not None:
                    yield _check_line(record, where)


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    """Open a file of lines; one that is not there is empty.

    Raises:
        RecipeError: it cannot be opened or read, or is no regular file.
    """
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
    except ValueError:  # maybe half a character
        return None
    if not isinstance(record, dict):
        return None
    is_measured = b"null" in raw and record.get("kind") in _MEASURED
    return _with_nan(record) if is_measured else record


def _with_nan(record: Mapping[str, Any]) -> dict[str, Any]:
    """Put NaN where a measurement has null, which was written for what is not finite."""
    counts = {"step", "tokens"}
    return {
        key: _with_nan(value) if type(value) is dict
        else math.nan if value is None and key not in counts
        else value
        for key, value in record.items()
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Seconds from the first start to the last record: of steps that count, and of the rest."""

    wall_seconds: float
    progress_seconds: float
    lost_seconds: Mapping[str, float]  # "elsewhere": what no step and no event accounts for

    @property
    def held_seconds(self) -> float:
        """How long processes of the run held its devices, whatever they did with them."""
        return self.wall_seconds - self.lost_seconds[_BETWEEN]

    @property
    def fraction(self) -> float | None:
        """The part of the time that made progress; None before the first step."""
        return self.progress_seconds / self.wall_seconds if self.wall_seconds else None


@dataclass(frozen=True, kw_only=True)
class RunHistory:
    """What happened, in the order of the steps; events in the order of time."""

    steps: StepTable
    held_out: tuple[HeldOutEvaluation, ...]
    events: tuple[RunEvent, ...]
    repeated_steps: int
    half_written_lines: int
    goodput: Goodput
    energy: Mapping[str, EnergyReading]  # of devices and hosts, of steps thrown away, too

    def events_of(self, kind: str) -> tuple[RunEvent, ...]:
        return tuple(event for event in self.events if event.kind == kind)


def read_journal(folder: Path) -> RunHistory:
    """Read what the run in ``folder`` wrote; a missing file is an empty one.

    Raises:
        RecipeError: more broken lines than kills, or a line that is no record.
    """
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
        account.book(record)
        if kind == _ENERGY:
            energy = {key: EnergyReading.from_json(record[key]) for key in ("devices", "hosts")}
        elif kind == "step":
            steps.put(check_record(record, StepMetrics, where, _VERSIONS))
        elif kind == "held_out":
            held_out[record["step"]] = HeldOutEvaluation.model_validate(record)
        else:
            events.append(RunEvent.model_validate(record))
        if kind in _GO_BACK:  # what was computed after these weights is forgotten
            lost = steps.cut(record["step"])
            account.lost[_AGAIN] += sum(lost)
            repeated += len(lost)
            held_out = {step: one for step, one in held_out.items() if step <= record["step"]}
    return RunHistory(
        steps=steps,
        held_out=tuple(held_out[step] for step in sorted(held_out)),
        events=tuple(events),
        repeated_steps=repeated,
        half_written_lines=len(half_written),
        goodput=account.close(sum(steps.column("seconds"))),
        energy=energy,
    )


def held_until(now: float, records: Iterable[Mapping[str, Any]]) -> float:
    """Add up how long all processes of a run held its devices, the last one until ``now``.

    ``records`` are its events in any order: a start or resume tells the time of the last
    measurement before it. ``now`` is in seconds since the epoch, as their times are.
    """
    account, events = _Account(), list(records)
    ends = (one.get("evidence", {}).get(MEASURED_UNTIL) for one in events)
    measured = [{"kind": "step", "seconds": 0.0, "time": one} for one in ends if one]
    for record in sorted((*events, *measured), key=lambda one: float(one["time"])):
        account.book(record)
    account.last = max(account.last, now)
    return account.close(0.0).held_seconds


@dataclass(kw_only=True)
class _Account:
    """Book records in the order of time; each took its ``seconds`` up to its ``time``."""

    began: float | None = None
    last: float = 0.0
    last_kind: str = ""
    lost: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_LOST, 0.0))

    def book(self, record: Mapping[str, Any]) -> None:
        kind = record["kind"]
        if kind in _FROM_OUTSIDE or kind == _ENERGY:
            return
        if kind == "restart" and not record["evidence"]["restart"]:
            return  # a new job tells why the ranks of one before ended: the queue lies between
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

    def close(self, progress_seconds: float) -> Goodput:
        """Balance the account with the seconds of the steps that count."""
        wall = 0.0 if self.began is None else self.last - self.began
        rest = wall - progress_seconds - sum(self.lost.values())
        return Goodput(
            wall_seconds=wall,
            progress_seconds=progress_seconds,
            lost_seconds={**self.lost, "elsewhere": rest},
        )
