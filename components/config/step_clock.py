"""The clock of a run: which step sees which samples and tokens, through all its phases.

A phase begins with the first step that begins at its token or after it, as a run ends with the
first step that reaches its budget; each takes one step at least. So every step has one length
of sequence and one batch, and each token is counted once.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

from components.config.batch_ramp import BatchRamp


class Helping(NamedTuple):
    """What a phase takes in a step: from which token of the budget on, of what length."""

    phase: str  # empty for what comes before the first
    first_token: int
    sequence_length: int
    ramp: BatchRamp
    packed: bool = False  # rows of whole documents


class PhaseSpan(NamedTuple):
    """The steps of a phase, and what was seen before the first of them and with the last."""

    name: str
    first_step: int
    end_step: int
    first_sample: int
    first_token: int
    end_token: int
    sequence_length: int
    packed: bool

    @property
    def steps(self) -> range:
        return range(self.first_step, self.end_step)

    @property
    def tokens(self) -> int:
        return self.end_token - self.first_token


class Cutting(NamedTuple):
    """How sources are cut into samples, from one of the run on."""

    first_sample: int
    sequence_length: int
    packed: bool


class EqualSteps(NamedTuple):
    """Steps of one batch and one length in a row, and what was seen before the first."""

    first_step: int
    first_sample: int
    first_token: int
    samples: int
    sequence_length: int

    @property
    def tokens_per_step(self) -> int:
        return self.samples * self.sequence_length


@dataclass(frozen=True)
class StepClock:
    """Steps, samples and tokens of a run, each from the other in O(log plateaus)."""

    plateaus: tuple[EqualSteps, ...]
    spans: tuple[PhaseSpan, ...]

    @classmethod
    def of(cls, helpings: Sequence[Helping], total_tokens: int) -> Self:
        """Lay the phases one after another; ``helpings`` are in the order of their tokens."""
        plateaus, spans = list[EqualSteps](), list[PhaseSpan]()
        step = sample = token = 0
        ends = (*(one.first_token for one in helpings[1:]), total_tokens)
        for (name, _, length, ramp, packed), end in zip(helpings, ends, strict=True):
            taken = max(1, ramp.steps(max(0, -(-(end - token) // length))))
            for first, consumed, samples in ramp.plateaus:
                if first < taken:
                    seen = sample + consumed, token + consumed * length
                    plateaus.append(EqualSteps(step + first, *seen, samples, length))
            consumed = ramp.consumed_after(taken)
            until = token + consumed * length
            ends_at = step + taken
            spans.append(PhaseSpan(name, step, ends_at, sample, token, until, length, packed))
            step, sample, token = step + taken, sample + consumed, until
        return cls(tuple(plateaus), tuple(spans))

    @property
    def steps(self) -> int:
        """Steps of the whole run; the last may overshoot the budget."""
        return self.spans[-1].end_step

    def at(self, step: int) -> EqualSteps:
        """Find the batch of the step before which ``step`` steps were taken."""
        return self.plateaus[bisect_right(self._first_steps, step) - 1]

    def consumed_after(self, step: int) -> int:
        """Count the samples seen after ``step`` steps."""
        here = self.at(step)
        return here.first_sample + (step - here.first_step) * here.samples

    def tokens_after(self, step: int) -> int:
        """Count the tokens seen after ``step`` steps."""
        here = self.at(step)
        return here.first_token + (step - here.first_step) * here.tokens_per_step

    def steps_of(self, tokens: int) -> int:
        """Return the fewest steps that see ``tokens`` or more."""
        here = self.plateaus[bisect_right(self._first_tokens, tokens) - 1]
        return here.first_step - (here.first_token - tokens) // here.tokens_per_step

    def sample_at(self, tokens: int) -> int:
        """Count the samples before the first one that begins at ``tokens`` or after them."""
        here = self.plateaus[bisect_right(self._first_tokens, tokens) - 1]
        return here.first_sample - (here.first_token - tokens) // here.sequence_length

    def token_at(self, sample: int) -> int:
        """Return the tokens before a sample of the run."""
        here = next(one for one in reversed(self.plateaus) if one.first_sample <= sample)
        return here.first_token + (sample - here.first_sample) * here.sequence_length

    def span_of(self, step: int) -> PhaseSpan:
        """Find the phase of the step after the first ``step`` ones; after all, the last."""
        return next(one for one in reversed(self.spans) if one.first_step <= step)

    def cuts(self) -> tuple[Cutting, ...]:
        """Say from which sample on sources are cut otherwise: at another length, or packed."""
        found = [Cutting(0, self.spans[0].sequence_length, self.spans[0].packed)]
        for span in self.spans:
            if found[-1][1:] != (span.sequence_length, span.packed):
                found.append(Cutting(span.first_sample, span.sequence_length, span.packed))
        return tuple(found)

    @cached_property
    def _first_steps(self) -> list[int]:
        return [one.first_step for one in self.plateaus]

    @cached_property
    def _first_tokens(self) -> list[int]:
        return [one.first_token for one in self.plateaus]
