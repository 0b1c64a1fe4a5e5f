"""The batch ramp against Megatron's rule, stepped one by one, and BLOOM's published counts."""

import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.config.batch_ramp import BatchRamp, BatchStage
from components.errors import RecipeError

SEQUENCE_LENGTH = 2048
RAMP_SAMPLES = 9_765_625  # 20 B tokens
TRAIN_SAMPLES = 220_000_000

# BLOOM's launch scripts: full batch, increment; every size starts at 192 sequences.
BLOOM = {
    "bloom176b": (2048, 16),
    "bloom7b1": (512, 32),
    "bloom3b": (512, 32),
    "bloom1b7": (512, 16),
    "bloom1b1": (256, 16),
    "bloom560m": (256, 32),
}
# What follows from the scripts: steps in the ramp, samples at its end.
RAMP_ENDS = {
    "bloom176b": (12_658, 9_765_808),
    "bloom7b1": (31_583, 9_765_632),
    "bloom3b": (31_583, 9_765_632),
    "bloom1b7": (30_743, 9_765_664),
    "bloom1b1": (45_525, 9_765_632),
    "bloom560m": (47_230, 9_765_696),
}
# The published checkpoints that were evaluated: step, billions of tokens.
EVALUATED = {
    "bloom176b": (95_000, 365.37),
    "bloom7b1": (337_500, 340.78),
    "bloom3b": (337_250, 340.52),
    "bloom1b7": (340_500, 344.80),
    "bloom1b1": (660_750, 342.56),
    "bloom560m": (659_500, 341.01),
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
    full, increment = BLOOM[name]
    return BatchRamp(
        full_samples=full,
        start_samples=192,
        increment_samples=increment,
        ramp_samples=RAMP_SAMPLES,
    )


def stepped(
    full: int, start: int, increment: int, ramp: int, share: float | Fraction
) -> Iterator[tuple[int, int]]:
    """Samples before each step and its batch: Megatron's rule, in a loop."""
    consumed = 0
    while True:
        batch = full if consumed > ramp else start + increment * int(consumed / share)
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
def test_every_step_takes_what_the_rule_says(ramp: BatchRamp) -> None:
    full, start = ramp.full_samples, ramp.start_samples
    count = (full - start) // ramp.increment_samples
    rule = stepped(
        full,
        start,
        ramp.increment_samples,
        ramp.ramp_samples,
        Fraction(ramp.ramp_samples, count),
    )
    for step, (consumed, batch) in enumerate(islice(rule, 200)):
        assert ramp.consumed_after(step) == consumed
        assert ramp.consumed_after(step + 1) == consumed + batch


@given(ramp=ramps(), total=st.integers(0, 20_000))
def test_the_steps_are_the_fewest_that_see_the_total(ramp: BatchRamp, total: int) -> None:
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
    full, increment = BLOOM[name]
    ramp = bloom(name)
    share = RAMP_SAMPLES / ((full - 192) // increment)
    rule = stepped(full, 192, increment, RAMP_SAMPLES, share)
    for step, (consumed, batch) in enumerate(
        islice(rule, ramp.batch_stages[-1].first_step + 2)
    ):
        assert ramp.consumed_after(step + 1) - consumed == batch


@pytest.mark.parametrize("name", BLOOM)
def test_blooms_ramps_end_where_the_scripts_say(name: str) -> None:
    ramp = bloom(name)
    assert (
        ramp.batch_stages[-1].first_step,
        ramp.consumed_after(ramp.batch_stages[-1].first_step),
    ) == RAMP_ENDS[name]


@pytest.mark.parametrize("name", BLOOM)
def test_blooms_evaluated_checkpoints_saw_the_published_tokens(name: str) -> None:
    step, billions = EVALUATED[name]
    tokens = bloom(name).consumed_after(step) * SEQUENCE_LENGTH
    assert round(tokens / 1e9, 2) == billions


@pytest.mark.parametrize(("step", "samples", "tokens"), LOGGED)
def test_bloom176b_counts_as_its_log_lines(step: int, samples: int, tokens: int) -> None:
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
    assert ramp.batch_stages == (
        BatchStage(0, 0, 4),
        BatchStage(1, 4, 6),
        BatchStage(2, 10, 10),
    )


def test_without_a_ramp_every_step_is_full() -> None:
    ramp = BatchRamp.from_constant(1024)
    assert (ramp.batch_stages[-1].first_step, ramp.consumed_after(1)) == (0, 1024)
    assert ramp.consumed_after(1_430_511) == 1_430_511 * 1024
    assert ramp.count_steps(6_000_000_000_000 // 4096) == 1_430_512
    assert [ramp.count_steps(samples) for samples in (0, 1, 1024, 1025)] == [0, 1, 1, 2]


def test_the_ramp_needs_no_torch() -> None:
    code = "import sys, components.config.batch_ramp; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"full_samples": 0}, r"budget\.global_batch_tokens: 0 is less than one sequence"),
        ({"start_samples": 0}, r"budget\.ramp_up\.start_tokens: 0 is less than one sequence"),
        (
            {"start_samples": 600},
            r"start_tokens: 600 is more than sequences per full batch, 512",
        ),
        ({"increment_samples": 0}, r"budget\.ramp_up\.increment_tokens: steps of 0 samples"),
        ({"increment_samples": 48}, r"increment_tokens: steps of 48 .* reach 512 from 192"),
        ({"ramp_samples": 0}, r"budget\.ramp_up\.over_tokens: 0 samples cannot ramp from 192"),
        ({"ramp_samples": -1}, r"over_tokens: -1 samples cannot ramp from 192 to 512"),
        ({"start_samples": 512}, r"over_tokens: 1,000 samples cannot ramp from 512 to 512"),
    ],
)
def test_rejects_ramps_that_lead_nowhere(change: dict[str, int], message: str) -> None:
    good = {
        "full_samples": 512,
        "start_samples": 192,
        "increment_samples": 32,
        "ramp_samples": 1_000,
    }
    with pytest.raises(RecipeError, match=message):
        BatchRamp(**{**good, **change})
