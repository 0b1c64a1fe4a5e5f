"""What happened in a run: its measurements and its events, put together in the order of time.

``metrics.jsonl`` has steps, held-out losses and energy, ``journal.jsonl`` what befell the run,
one JSON object a line. A run can be killed at any byte and go on later from a checkpoint, or go
back to one. So a line may be half written, and steps may be computed twice. What was thrown
away is not part of the run: this keeps the history that led to the last weights, and counts the
rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.energy.counters import EnergyReading
from components.errors import RecipeError
from components.run.goodput import Account, Goodput
from components.run.lines import BEGINS, VERSIONS, Line, read_run_lines


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMetrics:
    """One optimizer step; ``tokens`` are those seen when it is done, ``loss`` is in nats.

    ``time`` is when it was done, in seconds since the epoch.
    """

    step: int
    time: float
    tokens: int
    loss: float
    auxiliary_loss: float
    expert_load: float
    lr: float
    gradient_norm: float
    loss_scale: float
    seconds: float
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutEvaluation:
    """One evaluation on the held-out text, in nats per token; ``time`` as of a step."""

    step: int
    time: float
    tokens: int
    loss: float
    by_source: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEvent:
    """What befell the run; ``step`` and ``tokens`` are those of the weights after it.

    ``time`` is in seconds since the epoch, ``seconds`` how long the run stood still for it.
    """

    kind: str
    step: int
    tokens: int
    time: float
    cause: str
    seconds: float
    evidence: Mapping[str, Any]


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


_GO_BACK = (*BEGINS, "roll_back")


@dataclass(kw_only=True)
class _Draft:
    """The journal while it is read, by step, so that a repeated step replaces itself."""

    steps: dict[int, StepMetrics] = field(default_factory=dict)
    held_out: dict[int, HeldOutEvaluation] = field(default_factory=dict)
    events: list[RunEvent] = field(default_factory=list)
    repeated_steps: int = 0
    account: Account = field(default_factory=Account)
    energy: dict[str, EnergyReading] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "energy":  # a sum so far, which took no time of its own
            self.energy = {
                name: EnergyReading.from_json(record[name]) for name in ("devices", "hosts")
            }
            return
        self.account.book(record)
        if record["kind"] == "step":
            step = _step(record)
            self.steps[step.step] = step
        elif record["kind"] == "held_out":
            self.held_out[record["step"]] = _held_out(record)
        else:
            event = _event(record)
            self.events.append(event)
            if event.kind in _GO_BACK:
                self.rewind(event.step)

    def rewind(self, step: int) -> None:
        """Forget what was computed after the weights that the run went on from."""
        lost = [one for one in self.steps if one > step]
        self.repeated_steps += len(lost)
        for one in lost:
            self.account.throw_away(self.steps.pop(one).seconds)
        self.held_out = {one: m for one, m in self.held_out.items() if one <= step}


def read_journal(folder: Path) -> RunHistory:
    """Read what the run in ``folder`` wrote, without lines that a kill left half written.

    A kill leaves one such line in a file at most. A missing file is an empty one: the run died
    before its first step.

    Raises:
        RecipeError: more broken lines than kills, or a line that is no record.
    """
    found = read_run_lines(folder)
    draft = _Draft()
    for line in found.lines:
        _add(draft, line)
    return _finished(draft, found.half_written)


def _add(draft: _Draft, line: Line) -> None:
    try:
        draft.add(line.record)
    except KeyError as missing:
        problem = f"the record has no {missing}"
    except (TypeError, ValueError) as wrong:
        problem = str(wrong)
    else:
        return
    raise RecipeError(line.where, problem, VERSIONS)


def _step(record: Mapping[str, Any]) -> StepMetrics:
    return StepMetrics(
        step=int(record["step"]),
        time=float(record["time"]),
        tokens=int(record["tokens"]),
        loss=float(record["loss"]),
        auxiliary_loss=float(record["auxiliary_loss"]),
        expert_load=float(record["expert_load"]),
        lr=float(record["lr"]),
        gradient_norm=float(record["gradient_norm"]),
        loss_scale=float(record["loss_scale"]),
        seconds=float(record["seconds"]),
        tokens_per_second=float(record["tokens_per_second"]),
    )


def _held_out(record: Mapping[str, Any]) -> HeldOutEvaluation:
    return HeldOutEvaluation(
        step=int(record["step"]),
        time=float(record["time"]),
        tokens=int(record["tokens"]),
        loss=float(record["loss"]),
        by_source={name: float(loss) for name, loss in dict(record["by_source"]).items()},
    )


def _event(record: Mapping[str, Any]) -> RunEvent:
    return RunEvent(
        kind=str(record["kind"]),
        step=int(record["step"]),
        tokens=int(record["tokens"]),
        time=float(record["time"]),
        cause=str(record["cause"]),
        seconds=float(record["seconds"]),
        evidence=dict(record["evidence"]),
    )


def _finished(draft: _Draft, half_written: int) -> RunHistory:
    steps = tuple(draft.steps[step] for step in sorted(draft.steps))
    return RunHistory(
        steps=steps,
        held_out=tuple(draft.held_out[step] for step in sorted(draft.held_out)),
        events=tuple(draft.events),
        repeated_steps=draft.repeated_steps,
        half_written_lines=half_written,
        goodput=draft.account.close(sum(step.seconds for step in steps)),
        energy=draft.energy,
    )
