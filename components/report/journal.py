"""The journal of a run: ``metrics.jsonl``, one JSON object a line, written while it trains.

A run can be killed at any byte and go on later from a checkpoint. So a line may be half
written, and steps may be computed twice. What a resume threw away is not part of the run:
the journal keeps the history that led to the last weights, and counts the rest.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.errors import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One optimizer step; ``tokens`` are those seen when it is done, ``loss`` is in nats."""

    step: int
    tokens: int
    loss: float
    lr: float
    gradient_norm: float
    seconds: float
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """One evaluation on the held-out text, in nats per token."""

    step: int
    tokens: int
    loss: float
    by_source: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A moment of a run: a checkpoint that was written, or a resume."""

    step: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Journal:
    """What happened, in the order of the steps."""

    steps: tuple[Step, ...]
    held_out: tuple[HeldOut, ...]
    checkpoints: tuple[Mark, ...]
    resumes: tuple[Mark, ...]
    repeated_steps: int
    half_written_lines: int


@dataclass(kw_only=True)
class _Draft:
    """The journal while it is read, by step, so that a repeated step replaces itself."""

    steps: dict[int, Step] = field(default_factory=dict)
    held_out: dict[int, HeldOut] = field(default_factory=dict)
    checkpoints: dict[int, Mark] = field(default_factory=dict)
    resumes: list[Mark] = field(default_factory=list)
    repeated_steps: int = 0

    def add(self, record: Mapping[str, Any]) -> None:
        match record["kind"]:
            case "step":
                step = _step(record)
                self.repeated_steps += step.step in self.steps
                self.steps[step.step] = step
            case "held_out":
                self.held_out[record["step"]] = _held_out(record)
            case "checkpoint":
                self.checkpoints[record["step"]] = _mark(record)
            case "resume":
                self.rewind(_mark(record))
            case unknown:
                known = "step, held_out, checkpoint, resume"
                raise ValueError(f"kind {unknown!r} is none of {known}")

    def rewind(self, resume: Mark) -> None:
        """Forget what was computed after the checkpoint that the run went on from."""
        self.resumes.append(resume)
        lost = [step for step in self.steps if step > resume.step]
        self.repeated_steps += len(lost)
        for step in lost:
            del self.steps[step]
        self.held_out = {step: m for step, m in self.held_out.items() if step <= resume.step}


def read_journal(path: Path) -> Journal:
    """Read the journal, without the lines that a kill left half written.

    A broken line counts as half written where a kill can leave one: at the end, or just
    before a resume. A missing file is an empty journal: the run died before its first step.

    Raises:
        RecipeError: a broken line in any other place, or a line that is no record.
    """
    draft, half_written, broken = _Draft(), 0, ""
    for where, text in _lines(path):
        record = _parsed(text)
        if broken and (record is None or record.get("kind") != "resume"):
            raise RecipeError(
                broken,
                "is not JSON, and no kill explains it: the journal goes on after it",
                "repair or delete the line",
            )
        broken = where if record is None else ""
        if record is None:
            half_written += 1
        else:
            _add(draft, record, where)
    return _finished(draft, half_written)


def _lines(path: Path) -> Iterable[tuple[str, str]]:
    """Yield the place and the text of each line.

    A run that goes on after a kill may append to the half line: that is two lines.
    """
    if not path.exists():
        return
    # A kill can cut a line in the middle of a character.
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, start=1):
            second = max(0, text.rfind('{"kind"'))
            for part in (text[:second], text[second:]):
                if part.strip():
                    yield f"{path}:{number}", part


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
    except json.JSONDecodeError:
        return None
    return record if isinstance(record, dict) else None


def _add(draft: _Draft, record: Mapping[str, Any], where: str) -> None:
    try:
        draft.add(record)
    except KeyError as missing:
        problem = f"the record has no {missing}"
    except (TypeError, ValueError) as wrong:
        problem = str(wrong)
    else:
        return
    raise RecipeError(where, problem, "the journal and this report must be of the same version")


def _step(record: Mapping[str, Any]) -> Step:
    return Step(
        step=int(record["step"]),
        tokens=int(record["tokens"]),
        loss=float(record["loss"]),
        lr=float(record["lr"]),
        gradient_norm=float(record["gradient_norm"]),
        seconds=float(record["seconds"]),
        tokens_per_second=float(record["tokens_per_second"]),
    )


def _held_out(record: Mapping[str, Any]) -> HeldOut:
    return HeldOut(
        step=int(record["step"]),
        tokens=int(record["tokens"]),
        loss=float(record["loss"]),
        by_source={name: float(loss) for name, loss in record["by_source"].items()},
    )


def _mark(record: Mapping[str, Any]) -> Mark:
    return Mark(step=int(record["step"]), tokens=int(record["tokens"]))


def _finished(draft: _Draft, half_written: int) -> Journal:
    return Journal(
        steps=tuple(draft.steps[step] for step in sorted(draft.steps)),
        held_out=tuple(draft.held_out[step] for step in sorted(draft.held_out)),
        checkpoints=tuple(draft.checkpoints[step] for step in sorted(draft.checkpoints)),
        resumes=tuple(draft.resumes),
        repeated_steps=draft.repeated_steps,
        half_written_lines=half_written,
    )
