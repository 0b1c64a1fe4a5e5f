"""The batch ramp and the clock of phases, against loops and BLOOM's published counts."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import islice, pairwise
from operator import truediv
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.config.batch_ramp import BatchRamp, BatchStage
from components.config.step_clock import PhaseBatch, TokenClock
from components.errors import RecipeError

SEQUENCE_LENGTH = 2048
RAMP_SAMPLES = 9_765_625  # 20 B tokens
TRAIN_SAMPLES = 220_000_000

# BLOOM's launch scripts: full batch, increment; every size starts at 192 sequences. Then follow
# steps in the ramp and samples at its end, and the published checkpoints that were evaluated:
# step, billions of tokens.
BLOOM = {
    "bloom176b": (2048, 16, (12_658, 9_765_808), (95_000, 365.37)),
    "bloom7b1": (512, 32, (31_583, 9_765_632), (337_500, 340.78)),
    "bloom3b": (512, 32, (31_583, 9_765_632), (337_250, 340.52)),
    "bloom1b7": (512, 16, (30_743, 9_765_664), (340_500, 344.80)),
    "bloom1b1": (256, 16, (45_525, 9_765_632), (660_750, 342.56)),
    "bloom560m": (256, 32, (47_230, 9_765_696), (659_500, 341.01)),
}
# Log lines of the 176B run: iteration, consumed samples, consumed tokens.
LOGGED = [
    (12_695, 9_841_584, 20_155_564_032),
    (31_214, 47_768_496, 97_829_879_808),
    (42_780, 71_455_664, 146_341_199_872),
    (85_376, 158_692_272, 325_001_773_056),
    (94_768, 177_927_088, 364_394_676_224),
]


def bloom(name: str) -> BatchRamp:
    full, increment, *_ = BLOOM[name]
    sizes = {"full_samples": full, "start_samples": 192, "increment_samples": increment}
    return BatchRamp(**sizes, ramp_samples=RAMP_SAMPLES)


def stepped(ramp: BatchRamp, divide: Callable[[int, int], Any]) -> Iterator[tuple[int, int]]:
    """Samples before each step and its batch: Megatron's rule, in a loop."""
    start, increment = ramp.start_samples, ramp.increment_samples
    share = divide(ramp.ramp_samples, (ramp.full_samples - start) // increment)
    consumed = 0
    while True:
        is_full = consumed > ramp.ramp_samples
        batch = ramp.full_samples if is_full else start + increment * int(consumed / share)
        yield consumed, batch
        consumed += batch


@st.composite
def ramps(draw: st.DrawFn) -> BatchRamp:
    start, increment = draw(st.integers(1, 50)), draw(st.integers(1, 20))
    return BatchRamp(
        full_samples=start + increment * draw(st.integers(1, 20)),
        start_samples=start,
        increment_samples=increment,
        ramp_samples=draw(st.integers(1, 5_000)),
    )


@given(ramp=ramps())
def test_every_step_has_the_batch_of_the_rule(ramp: BatchRamp) -> None:
    for step, (consumed, batch) in enumerate(islice(stepped(ramp, Fraction), 200)):
        assert ramp.consumed_after(step) == consumed
        assert ramp.consumed_after(step + 1) == consumed + batch


@given(ramp=ramps(), total=st.integers(0, 20_000))
def test_the_number_of_steps_is_the_smallest_for_the_total(ramp: BatchRamp, total: int) -> None:
    steps = ramp.count_steps(total)
    assert ramp.consumed_after(steps) >= total
    assert steps == 0 or ramp.consumed_after(steps - 1) < total


@given(ramp=ramps())
def test_the_full_batch_comes_first_after_the_ramps_steps(ramp: BatchRamp) -> None:
    last = ramp.batch_stages[-1].first_step
    before, after, then = (ramp.consumed_after(step) for step in (last - 1, last, last + 1))
    assert after - before < ramp.full_samples
    assert then - after == ramp.full_samples


@pytest.mark.parametrize("name", BLOOM)
def test_blooms_ramps_equal_megatrons_floating_point_at_every_step(name: str) -> None:
    ramp = bloom(name)
    rule = islice(stepped(ramp, truediv), ramp.batch_stages[-1].first_step + 2)
    for step, (consumed, batch) in enumerate(rule):
        assert ramp.consumed_after(step + 1) - consumed == batch


@pytest.mark.parametrize("name", BLOOM)
def test_blooms_ramps_end_and_checkpoints_saw_tokens_as_published(name: str) -> None:
    *_, end, (step, billions) = BLOOM[name]
    ramp = bloom(name)
    first = ramp.batch_stages[-1].first_step
    assert (first, ramp.consumed_after(first)) == end
    assert round(ramp.consumed_after(step) * SEQUENCE_LENGTH / 1e9, 2) == billions


@pytest.mark.parametrize(("step", "samples", "tokens"), LOGGED)
def test_bloom176b_has_the_counts_of_its_log(step: int, samples: int, tokens: int) -> None:
    ramp = bloom("bloom176b")
    assert ramp.consumed_after(step) == samples
    assert ramp.consumed_after(step) * SEQUENCE_LENGTH == tokens
    assert ramp.count_steps(samples) == step


def test_bloom176b_plans_megatrons_iterations_and_the_part_that_megatron_drops() -> None:
    ramp = bloom("bloom176b")
    assert ramp.consumed_after(115_311) == TRAIN_SAMPLES - 848
    assert ramp.count_steps(TRAIN_SAMPLES) == 115_312


def test_a_step_may_be_longer_than_a_plateau() -> None:
    ramp = BatchRamp(full_samples=10, start_samples=4, increment_samples=1, ramp_samples=9)
    stages = (BatchStage(0, 0, 4), BatchStage(1, 4, 6), BatchStage(2, 10, 10))
    assert ramp.batch_stages == stages


def test_without_a_ramp_every_step_is_full() -> None:
    ramp = BatchRamp.from_constant(1024)
    assert (ramp.batch_stages[-1].first_step, ramp.consumed_after(1)) == (0, 1024)
    assert ramp.consumed_after(1_430_511) == 1_430_511 * 1024
    assert ramp.count_steps(6_000_000_000_000 // 4096) == 1_430_512
    assert [ramp.count_steps(samples) for samples in (0, 1, 1024, 1025)] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"full_samples": 0}, r"budget\.global_batch_tokens: 0 is less than one sequence"),
        ({"start_samples": 0}, r"budget\.ramp_up\.start_tokens: 0 is less than one sequence"),
        ({"start_samples": 600}, r"start_tokens: 600 is more than .* per full batch, 512"),
        ({"increment_samples": 0}, r"budget\.ramp_up\.increment_tokens: steps of 0 samples"),
        ({"increment_samples": 48}, r"increment_tokens: steps of 48 .* reach 512 from 192"),
        ({"ramp_samples": 0}, r"budget\.ramp_up\.over_tokens: 0 samples cannot ramp from 192"),
        ({"ramp_samples": -1}, r"over_tokens: -1 samples cannot ramp from 192 to 512"),
        ({"start_samples": 512}, r"over_tokens: 1,000 samples cannot ramp from 512 to 512"),
    ],
)
def test_impossible_ramps_are_refused(change: dict[str, int], message: str) -> None:
    good = {"full_samples": 512, "start_samples": 192, "increment_samples": 32}
    with pytest.raises(RecipeError, match=message):
        BatchRamp(**{**good, "ramp_samples": 1_000, **change})


@st.composite
def runs(draw) -> tuple[list[PhaseBatch], int]:
    starts = [0, *draw(st.lists(st.integers(40, 400), max_size=3, unique=True).map(sorted))]
    helpings = []
    for place, first in enumerate(starts):
        length, batch = draw(st.integers(1, 9)), draw(st.integers(1, 5))
        ramp = BatchRamp.from_constant(batch)
        if not place and draw(st.booleans()):
            sizes = {"full_samples": batch + 2, "start_samples": batch, "increment_samples": 1}
            ramp = BatchRamp(**sizes, ramp_samples=3)
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
def test_steps_samples_and_tokens_equal_a_count_by_step(run) -> None:
    helpings, total = run
    clock, steps = TokenClock.from_phase_batches(helpings, total), counted(helpings, total)
    assert clock.num_steps == len(steps) - 1
    tokens, samples = [one[1] for one in steps], [one[2] for one in steps]
    assert [clock.tokens_after(step) for step, _ in enumerate(steps)] == tokens
    assert [clock.consumed_after(step) for step, _ in enumerate(steps)] == samples
    for step, (phase, _, _, size) in enumerate(steps[:-1]):
        assert clock.find_batch_stage(step).samples == size
        assert int(clock.span_of(step).name) == phase
    for seen in {*tokens, *range(0, tokens[-1], 7)}:
        assert clock.steps_of(seen) == bisect_left(tokens, seen)
    # Each sample begins where the one before it ended, and the tokens are all there.
    begins = [clock.token_at(sample) for sample in range(samples[-1] + 1)]
    assert begins[0] == 0
    assert begins[-1] == tokens[-1]
    for seen in range(tokens[-1]):
        assert clock.sample_at(seen) == bisect_left(begins, seen)


@given(runs())
def test_phases_follow_without_gaps_and_begin_at_their_token(run) -> None:
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
    cuts = [cut.first_sample for cut in clock.list_sample_cuts()]
    assert cuts == sorted(set(cuts))
