"""Schedules of the published works against their log lines and what follows from flags."""

import pytest

from components.config.batch_ramp import BatchRamp
from components.optim.schedules import Chain, Cosine

BLOOM_SEQUENCE = 2048
MULA_STEP_TOKENS = 3072 * 2048
MULA_DATA_TOKENS = 4_000_000_000_000

BLOOM_176B = Cosine(
    total_tokens=200_000_000 * BLOOM_SEQUENCE,
    warmup_tokens=183_105 * BLOOM_SEQUENCE,
    warmup_from=0.0,
    start=1.0,
    end=6e-6 / 6e-5,
)
BLOOM_RAMP = BatchRamp(
    full_samples=2048, start_samples=192, increment_samples=16, ramp_samples=9_765_625
)
MULA = Cosine(
    total_tokens=MULA_DATA_TOKENS,
    warmup_tokens=2_500 * MULA_STEP_TOKENS,
    warmup_from=0.1,
    start=1.0,
    end=0.1,
)


# bigscience's chronicles of the 176B run
@pytest.mark.parametrize(
    ("iteration", "logged"),
    [
        (12_695, "5.969e-05"),
        (31_214, "5.279e-05"),
        (42_780, "4.475e-05"),
        (85_376, "1.150e-05"),
        (94_768, "7.610e-06"),
    ],
)
def test_bloom176b_has_the_logged_rates(iteration: int, logged: str) -> None:
    tokens = BLOOM_RAMP.consumed_after(iteration) * BLOOM_SEQUENCE
    assert f"{6e-5 * BLOOM_176B(tokens):.3e}" == logged


def test_bloom176b_ends_at_its_smallest_rate_and_stays_there() -> None:
    horizon = 409_600_000_000
    last = BLOOM_RAMP.consumed_after(115_311) * BLOOM_SEQUENCE
    assert [6e-5 * BLOOM_176B(at) for at in (horizon, last)] == pytest.approx([6e-6, 6e-6])


# github.com/epfLLM/Megatron-LLM, issue 11: batch 1024, peak 1.5e-4 after 2,000 iterations. The
# line of an iteration gives the rate at the samples consumed with it, so the next one's.
@pytest.mark.parametrize(
    ("iteration", "samples", "logged"),
    [
        (122, 124_928, "9.150e-06"),
        (123, 125_952, "9.225e-06"),
        (124, 126_976, "9.300e-06"),
        (125, 128_000, "9.375e-06"),
    ],
)
def test_megatron_logs_the_rate_at_the_samples_after_the_step(
    iteration: int, samples: int, logged: str
) -> None:
    cosine = Cosine(
        total_tokens=250_000 * 1024,
        warmup_tokens=2_000 * 1024,
        warmup_from=0.0,
        start=1.0,
        end=0.1,
    )
    ramp = BatchRamp.from_constant(1024)
    assert ramp.consumed_after(iteration) == samples
    assert f"{1.5e-4 * cosine(samples):.3e}" == logged
    assert f"{1.5e-4 * cosine(ramp.consumed_after(iteration - 1)):.3e}" != logged


@pytest.mark.parametrize(
    ("budget_tokens", "steps"),
    [(MULA_DATA_TOKENS, 635_783), (100_000_000_000, 15_895)],
)
def test_mula_takes_the_derived_number_of_steps(budget_tokens: int, steps: int) -> None:
    assert BatchRamp.from_constant(3072).count_steps(-(-budget_tokens // 2048)) == steps


@pytest.mark.parametrize("step", [0, 1, 1_250, 2_499, 2_500])
def test_mula_warms_up_from_its_smallest_rate(step: int) -> None:
    expected = 4e-5 + (4e-4 - 4e-5) * step / 2_500
    assert 4e-4 * MULA(step * MULA_STEP_TOKENS) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("data_tokens", [4_000_000_000_000, 4_050_000_000_000])
def test_mulas_short_runs_hardly_leave_the_peak(data_tokens: int) -> None:
    whole = Cosine(
        total_tokens=data_tokens,
        warmup_tokens=MULA.warmup_tokens,
        warmup_from=0.1,
        start=1.0,
        end=0.1,
    )
    assert f"{4e-4 * whole(100_000_000_000):.3e}" == "3.996e-04"


def test_mula_ends_at_its_smallest_rate() -> None:
    assert 4e-4 * MULA(MULA_DATA_TOKENS) == pytest.approx(4e-5)


# Megatron flags: lr 1.5e-4, lr-warmup-fraction 0.01, lr-decay-iters 320,000, min-lr 0
@pytest.mark.parametrize("step_tokens", [131_072, 16_384, 614_400])  # 3.6B, 20B, 175B
def test_the_scaling_study_warms_up_for_a_hundredth_of_its_horizon(step_tokens: int) -> None:
    cosine = Cosine(
        total_tokens=320_000 * step_tokens,
        warmup_tokens=3_200 * step_tokens,
        warmup_from=0.0,
        start=1.0,
        end=0.0,
    )
    after = {step: 1.5e-4 * cosine(step * step_tokens) for step in (1, 10, 3_200, 320_000)}
    assert after == pytest.approx(
        {1: 4.6875e-8, 10: 4.6875e-7, 3_200: 1.5e-4, 320_000: 0.0}, rel=1e-12
    )
    assert cosine((3_200 + 158_400) * step_tokens) == pytest.approx(0.5)


def test_teuken_hands_over_at_three_trillion_tokens() -> None:
    def phase(warmup_tokens: int, start: float, end: float) -> Cosine:
        return Cosine(
            total_tokens=3_000_000_000_000,
            warmup_tokens=warmup_tokens,
            warmup_from=0.0,
            start=start,
            end=end,
        )

    chain = Chain(
        phases={"first": phase(8_388_608_000, 1.0, 0.1), "second": phase(0, 0.1, 0.05)}
    )
    trillions = (3, 4, 6)
    rates = [f"{3e-4 * chain(count * 10**12):.2e}" for count in trillions]
    assert rates == ["3.00e-05", "2.63e-05", "1.50e-05"]
