"""The clock of a run with phases, against one that counts step by step."""

from bisect import bisect_left
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from components.config.batch_ramp import BatchRamp
from components.config.step_clock import PhaseBatch, TokenClock


@st.composite
def runs(draw) -> tuple[list[PhaseBatch], int]:
    starts = [0, *draw(st.lists(st.integers(40, 400), max_size=3, unique=True).map(sorted))]
    helpings = []
    for place, first in enumerate(starts):
        length, batch = draw(st.integers(1, 9)), draw(st.integers(1, 5))
        ramp = BatchRamp.from_constant(batch)
        if not place and draw(st.booleans()):
            ramp = BatchRamp(
                full_samples=batch + 2, start_samples=batch, increment_samples=1, ramp_samples=3
            )
        helpings.append(PhaseBatch(str(place), first, length, ramp))
    return helpings, starts[-1] + draw(st.integers(1, 300))


def samples_at(ramp: BatchRamp, consumed: int) -> int:
    """Return the batch by Megatron's rule for ``--rampup-batch-size``, in whole numbers."""
    if consumed >= ramp.ramp_samples:
        return ramp.full_samples
    increments = (ramp.full_samples - ramp.start_samples) // ramp.increment_samples
    done = consumed * increments // ramp.ramp_samples
    return ramp.start_samples + done * ramp.increment_samples


def counted(helpings: list[PhaseBatch], total: int) -> list[tuple[int, int, int, int]]:
    """Take step after step: which phase, what was seen before, how many samples."""
    steps, token, sample = [], 0, 0
    for one, end in zip(helpings, [*(h.first_token for h in helpings[1:]), total], strict=True):
        first, consumed = True, 0
        while first or token < end:
            first, size = False, samples_at(one.ramp, consumed)
            steps.append((int(one.phase), token, sample, size))
            consumed, sample = consumed + size, sample + size
            token += size * one.sequence_length
    return [*steps, (-1, token, sample, 0)]


@given(runs())
def test_steps_samples_and_tokens_are_those_that_are_counted_one_by_one(run) -> None:
    helpings, total = run
    clock, steps = TokenClock.from_phase_batches(helpings, total), counted(helpings, total)
    assert clock.num_steps == len(steps) - 1
    tokens, samples = [one[1] for one in steps], [one[2] for one in steps]
    assert [clock.tokens_after(step) for step, _ in enumerate(steps)] == tokens
    assert [clock.consumed_after(step) for step, _ in enumerate(steps)] == samples
    assert [clock.find_batch_stage(step).samples for step in range(clock.num_steps)] == [
        one[3] for one in steps[:-1]
    ]
    assert [int(clock.span_of(step).name) for step in range(clock.num_steps)] == [
        one[0] for one in steps[:-1]
    ]
    for seen in {*tokens, *range(0, tokens[-1], 7)}:
        assert clock.steps_of(seen) == bisect_left(tokens, seen)
    # Each sample begins where the one before it ended, and the tokens are all there.
    begins = [clock.token_at(sample) for sample in range(samples[-1] + 1)]
    assert begins[0] == 0
    assert begins[-1] == tokens[-1]
    for seen in range(tokens[-1]):
        assert clock.sample_at(seen) == bisect_left(begins, seen)


@given(runs())
def test_phases_follow_one_another_without_a_gap_and_begin_at_their_token(run) -> None:
    helpings, total = run
    clock = TokenClock.from_phase_batches(helpings, total)
    for one, other in pairwise(clock.spans):
        assert other[1] == one.end_step
        assert other.first_token == one.end_token
    assert sum(span.num_tokens for span in clock.spans) == clock.tokens_after(clock.num_steps)
    for span, helping in zip(clock.spans, helpings, strict=True):
        # At its token or less than a step after it, unless the phase before took its one step.
        one_step = len(clock.spans[clock.spans.index(span) - 1].step_range) == 1
        late = span.first_token - helping.first_token
        before = clock.find_batch_stage(max(0, span.first_step - 1)).tokens_per_step
        assert late >= 0
        assert late < before or one_step
    assert [cut.first_sample for cut in clock.list_sample_cuts()] == sorted({
        cut.first_sample for cut in clock.list_sample_cuts()
    })
