"""The lines of ``metrics.jsonl`` and ``journal.jsonl``, for whoever reads them.

A run can be killed at any byte and go on later: a kill leaves one half line in a file at most,
and it is left out. More of them than kills are damage, and refused where people ask.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.errors import RecipeError
from components.json_file import COPY_AGAIN, open_regular, parse_json
from components.run.records import Finite, Natural, RunRecord, check_record

FILES = ("metrics.jsonl", "journal.jsonl")
BEGINS = ("start", "resume")
MOST_LINE_BYTES = 4 << 20
MOST_BYTES = 2 << 30
VERSIONS = "the journal and this program must be of the same version"


@dataclass(frozen=True)
class Line:
    """One whole line, ``where`` being its file and number."""

    where: str
    record: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.record["kind"])


@dataclass(frozen=True)
class RunLines:
    """All whole lines of a run in the order of time, and how many were half written."""

    lines: tuple[Line, ...]
    half_written: int


class _Timed(RunRecord):
    kind: str
    time: Finite  # seconds since the epoch, when it was over


class StepLine(_Timed):
    """What every version says of a step; ``tokens`` are those seen when it is done."""

    step: Natural
    tokens: Natural
    loss: float
    seconds: Finite
    tokens_per_second: Finite


class HeldOutEvaluation(_Timed):
    """One evaluation on the held-out text, in nats per token."""

    step: Natural
    tokens: Natural
    loss: float
    by_source: Mapping[str, float]
    seconds: Finite


class _Counted(RunRecord):
    joules: Finite | None
    counted_seconds: Finite
    passed_seconds: Finite


class _Energy(_Timed):
    devices: _Counted
    hosts: _Counted


class RunEvent(_Timed):
    """What befell the run; ``step`` and ``tokens`` are those of the weights after it.

    ``seconds`` is how long the run stood still for it.
    """

    step: Natural
    tokens: Natural
    cause: str
    seconds: Finite
    evidence: Mapping[str, Any]


class _Restarted(RunRecord):
    restart: Natural


class _Restart(RunEvent):
    evidence: _Restarted  # type: ignore[assignment]  # read as a mapping: this only checks it


_KINDS: Mapping[str, type[_Timed]] = {
    "step": StepLine,
    "held_out": HeldOutEvaluation,
    "energy": _Energy,
    "restart": _Restart,
}


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Read the whole lines of a file, in their order; a file that is not there has none.

    Raises:
        RecipeError: it is no file of lines, or a line is no record of a run.
    """
    return [line.record for line in _lines(file) if isinstance(line, Line)]


def read_run_lines(run: Path) -> RunLines:
    """Read both files of a run.

    Raises:
        RecipeError: more broken lines than kills, or a line that is no record.
    """
    whole: list[Line] = []
    halves: list[list[str]] = []
    for name in FILES:
        found = list(_lines(run / name))
        whole += [line for line in found if isinstance(line, Line)]
        halves.append([line for line in found if isinstance(line, str)])
    begins = sum(line.kind in BEGINS for line in whole)
    for places in halves:
        if len(places) > max(1, begins):
            raise RecipeError(
                places[-1],
                f"is not JSON, and no kill explains it: {len(places)} such lines of a run that "
                f"began {begins} times",
                "repair or delete the line",
            )
    whole.sort(key=lambda line: float(line.record["time"]))
    return RunLines(tuple(whole), sum(map(len, halves)))


def _lines(file: Path) -> Iterator[Line | str]:
    """Yield each whole line, and of a broken one its place."""
    if not file.exists() and not file.is_symlink():
        return
    number = 0
    try:
        with open_regular(file) as stream:
            while raw := stream.readline(MOST_LINE_BYTES + 1):
                number += 1
                where = f"{file}:{number}"
                if len(raw) > MOST_LINE_BYTES or stream.tell() > MOST_BYTES:
                    raise RecipeError(where, "is longer than any line of a run", COPY_AGAIN)
                if raw.strip():
                    yield _parsed(raw, where)
    except (OSError, ValueError) as error:
        if isinstance(error, RecipeError):
            raise
        raise RecipeError(str(file), f"cannot be read: {error}", COPY_AGAIN) from None


def _parsed(raw: bytes, where: str) -> Line | str:
    try:
        record = parse_json(raw, finite=False)
    except ValueError:  # maybe half a character
        return where
    if not isinstance(record, dict):
        return where
    kind = _KINDS.get(str(record.get("kind")), RunEvent)
    check_record(record, kind, where, VERSIONS)
    return Line(where, record)
