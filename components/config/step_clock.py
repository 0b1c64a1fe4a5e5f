"""Step clock of a run: samples and tokens of each step, in all phases.

A phase begins with the first step that starts at or after its token, as a run ends with the
first step that reaches its budget. Each phase has at least one step. So every step has one
sequence length and one batch size, and each token is counted once.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

from components.config.batch_ramp import BatchRamp


class PhaseBatch(NamedTuple):
    """Settings of a phase for the clock: first token, sequence length, batch ramp, packing."""

    phase: str  # empty before the first phase
    first_token: int
    sequence_length: int
    ramp: BatchRamp
    packed: bool = False  # rows of whole documents


class PhaseSpan(NamedTuple):
    """Span of a phase: its steps, the samples and tokens before it, the tokens at its end."""

    name: str
    first_step: int
    end_step: int
    first_sample: int
    first_token: int
    end_token: int
    sequence_length: int
    packed: bool

    @property
    def step_range(self) -> range:
        return range(self.first_step, self.end_step)

    @property
    def num_tokens(self) -> int:
        return self.end_token - self.first_token


class SampleCut(NamedTuple):
    """Sequence length and packing of samples, from ``first_sample`` of the run on."""

    first_sample: int
    sequence_length: int
    packed: bool


class EqualSteps(NamedTuple):
    """Consecutive steps of equal batch and length, and the samples and tokens before them."""

    first_step: int
    first_sample: int
    first_token: int
    samples: int
    sequence_length: int

    @property
    def tokens_per_step(self) -> int:
        return self.samples * self.sequence_length


@dataclass(frozen=True)
class TokenClock:
    """Conversion between steps, samples and tokens of a run, in O(log plateaus)."""

    plateaus: tuple[EqualSteps, ...]
    spans: tuple[PhaseSpan, ...]

    @classmethod
    def from_phase_batches(cls, helpings: Sequence[PhaseBatch], total_tokens: int) -> Self:
        """Build the clock from ``helpings``, which are sorted by their first tokens."""
        plateaus, spans = list[EqualSteps](), list[PhaseSpan]()
        step = sample = token = 0
        ends = (*(helping.first_token for helping in helpings[1:]), total_tokens)
        for (name, _, length, ramp, packed), end in zip(helpings, ends, strict=True):
            steps = max(1, ramp.count_steps(max(0, -(-(end - token) // length))))
            for first, consumed, samples in ramp.batch_stages:
                if first < steps:
                    before = sample + consumed, token + consumed * length
                    plateaus.append(EqualSteps(step + first, *before, samples, length))
            consumed = ramp.consumed_after(steps)
            until = token + consumed * length
            ends_at = step + steps
            spans.append(PhaseSpan(name, step, ends_at, sample, token, until, length, packed))
            step, sample, token = step + steps, sample + consumed, until
        return cls(tuple(plateaus), tuple(spans))

    @property
    def num_steps(self) -> int:
        """Number of steps of the run; the last step may overshoot the budget."""
        return self.spans[-1].end_step

    def find_batch_stage(self, step: int) -> EqualSteps:
        """Return the plateau of the step that follows the first ``step`` steps."""
        return self.plateaus[bisect_right(self._first_steps, step) - 1]

    def consumed_after(self, step: int) -> int:
        """Return the number of samples seen after ``step`` steps."""
        here = self.find_batch_stage(step)
        return here.first_sample + (step - here.first_step) * here.samples

    def tokens_after(self, step: int) -> int:
        """Return the number of tokens seen after ``step`` steps."""
        here = self.find_batch_stage(step)
        return here.first_token + (step - here.first_step) * here.tokens_per_step

    def steps_of(self, tokens: int) -> int:
        """Return the smallest number of steps that sees at least ``tokens`` tokens."""
        here = self.plateaus[bisect_right(self._first_tokens, tokens) - 1]
        return here.first_step - (here.first_token - tokens) // here.tokens_per_step

    def sample_at(self, tokens: int) -> int:
        """Return the index of the first sample that starts at or after ``tokens``."""
        here = self.plateaus[bisect_right(self._first_tokens, tokens) - 1]
        return here.first_sample - (here.first_token - tokens) // here.sequence_length

    def token_at(self, sample: int) -> int:
        """Return the number of tokens before a sample of the run."""
        here = next(
            plateau for plateau in reversed(self.plateaus) if plateau.first_sample <= sample
        )
        return here.first_token + (sample - here.first_sample) * here.sequence_length

    def span_of(self, step: int) -> PhaseSpan:
        """Return the phase of the step after the first ``step`` steps, at the end the last."""
        return next(span for span in reversed(self.spans) if span.first_step <= step)

    def list_sample_cuts(self) -> tuple[SampleCut, ...]:
        """Return the samples at which the sequence length or the packing changes."""
        cuttings = [SampleCut(0, self.spans[0].sequence_length, self.spans[0].packed)]
        for span in self.spans:
            if cuttings[-1][1:] != (span.sequence_length, span.packed):
                cuttings.append(SampleCut(span.first_sample, span.sequence_length, span.packed))
        return tuple(cuttings)

    @cached_property
    def _first_steps(self) -> list[int]:
        return [plateau.first_step for plateau in self.plateaus]

    @cached_property
    def _first_tokens(self) -> list[int]:
        return [plateau.first_token for plateau in self.plateaus]
