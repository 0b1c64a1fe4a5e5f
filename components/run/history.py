"""Run history: measurements and events in the order of time, and the goodput.

A run can be killed at any byte and go on later from a checkpoint, or go back to one. So a line
may be half written, and steps may be computed twice. What was thrown away is not part of the
run: this keeps the history that led to the last weights, and counts the rest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.energy.counters import EnergyReading
from components.run.lines import (
    BEGINS,
    VERSIONS,
    HeldOutEvaluation,
    RunEvent,
    StepLine,
    read_run_lines,
)
from components.run.records import check_record

_PREFLIGHT = "preflight"  # with it a job begins, and its ranks start after it
_GO_BACK = (*BEGINS, "roll_back")
_BETWEEN = "between processes"
_OF_JOBS = ("job_end", "exclusion")  # no process tells them: of a lost job, much later
_ENERGY = "energy"  # a sum so far, which took no time of its own
_CAUSES = {
    "start": "starting",
    "resume": "starting",
    _PREFLIGHT: "starting",
    "held_out": "held-out losses",
    "checkpoint": "checkpoints",
    "skip": "guards",
    "lower_lr": "guards",
    "roll_back": "guards",
}
_AGAIN = "steps computed again"
_LOST = (
    "starting",
    _BETWEEN,
    _AGAIN,
    "checkpoints",
    "held-out losses",
    "guards",
)


class StepMetrics(StepLine):
    """One optimizer step, as this version writes it; the loss is in nats."""

    auxiliary_loss: float
    expert_load: float
    lr: float
    gradient_norm: float
    loss_scale: float


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Seconds from the first start to the last record: of steps that count, and of the rest.

    What neither a step nor an event accounts for is under ``elsewhere``.
    """

    wall_seconds: float
    progress_seconds: float
    lost_seconds: Mapping[str, float]

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
    """What happened, in the order of the steps; events in the order of time.

    ``energy`` is that of all the run's ``devices`` and ``hosts``, also for steps thrown away;
    empty before any was noted.
    """

    steps: tuple[StepMetrics, ...]
    held_out: tuple[HeldOutEvaluation, ...]
    events: tuple[RunEvent, ...]
    repeated_steps: int
    half_written_lines: int
    goodput: Goodput
    energy: Mapping[str, EnergyReading]

    def events_of(self, kind: str) -> tuple[RunEvent, ...]:
        return tuple(event for event in self.events if event.kind == kind)


def read_journal(folder: Path) -> RunHistory:
    """Read what the run in ``folder`` wrote, without lines that a kill left half written.

    A missing file is an empty one: the run died before its first step.

    Raises:
        RecipeError: more broken lines than kills, or a line that is no record.
    """
    found, account = read_run_lines(folder), _Account()
    steps: dict[int, StepMetrics] = {}  # by step: one that is repeated replaces itself
    held_out: dict[int, HeldOutEvaluation] = {}
    events: list[RunEvent] = []
    energy: dict[str, EnergyReading] = {}
    repeated = 0
    for line in found.lines:
        record = line.record
        account.book(record)
        if line.kind == _ENERGY:
            energy = {key: EnergyReading.from_json(record[key]) for key in ("devices", "hosts")}
        elif line.kind == "step":
            steps[record["step"]] = check_record(record, StepMetrics, line.where, VERSIONS)
        elif line.kind == "held_out":
            held_out[record["step"]] = HeldOutEvaluation.model_validate(record)
        else:
            events.append(RunEvent.model_validate(record))
        if line.kind in _GO_BACK:  # what was computed after these weights is forgotten
            lost = [steps.pop(one) for one in list(steps) if one > record["step"]]
            for step in lost:
                account.lost[_AGAIN] += step.seconds
            repeated += len(lost)
            held_out = {step: one for step, one in held_out.items() if step <= record["step"]}
    kept = tuple(steps[step] for step in sorted(steps))
    return RunHistory(
        steps=kept,
        held_out=tuple(held_out[step] for step in sorted(held_out)),
        events=tuple(events),
        repeated_steps=repeated,
        half_written_lines=found.half_written,
        goodput=account.close(sum(step.seconds for step in kept)),
        energy=energy,
    )


def held_until(now: float, records: Iterable[Mapping[str, Any]]) -> float:
    """Add up how long all processes of a run held its devices, the last one until ``now``.

    ``records`` are those of ``metrics.jsonl`` and ``journal.jsonl``, in any order; ``now`` is
    in seconds since the epoch, as their times are.
    """
    account = _Account()
    for record in sorted(records, key=lambda one: float(one["time"])):
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
        if kind in _OF_JOBS or kind == _ENERGY:
            return
        if kind == "restart" and not record["evidence"]["restart"]:
            return  # a new job tells why the ranks of one before ended: the queue lies between
        time, seconds = record["time"], record["seconds"]
        if self.began is None:
            self.began = time - seconds
        elif kind in BEGINS or kind == _PREFLIGHT:
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
