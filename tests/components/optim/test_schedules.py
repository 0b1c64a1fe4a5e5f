"""Schedules against other implementations, values by hand, and published logs."""

import math
import subprocess
import sys
from typing import Any, Literal, get_args

import pytest
import torch
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_wsd_schedule

from components.config.batch_ramp import BatchRamp
from components.optim.schedules import Chain, Constant, Cosine, WarmupStableDecay

T = 10**12
Shape = Literal["linear", "1-sqrt", "cosine", "exponential"]
SHAPES: tuple[Shape, ...] = get_args(Shape)


def cosine_of(total: int, warmup: int = 0, *, end: float = 0.1, **changes: Any) -> Cosine:
    """Make a schedule that rises from 0 to 1 and falls to ``end``."""
    ends = {"warmup_from": 0.0, "start": 1.0, "end": end} | changes
    return Cosine(total_tokens=total, warmup_tokens=warmup, **ends)


def megatron_get_lr(
    num_steps: int,
    init_lr: float,
    max_lr: float,
    min_lr: float,
    lr_warmup_steps: int,
    lr_decay_steps: int,
) -> float:
    """Megatron-LM's OptimizerParamScheduler.get_lr for the cosine style."""
    if lr_warmup_steps > 0 and num_steps <= lr_warmup_steps:
        return init_lr + (max_lr - init_lr) * float(num_steps) / float(lr_warmup_steps)
    if num_steps > lr_decay_steps:
        return min_lr
    decay_ratio = float(num_steps - lr_warmup_steps) / float(lr_decay_steps - lr_warmup_steps)
    coeff = 0.5 * (math.cos(math.pi * decay_ratio) + 1.0)
    return min_lr + coeff * (max_lr - min_lr)


@given(
    total=st.integers(2, 6 * T),
    warmup_share=st.floats(0, 0.999),
    share=st.floats(0, 1.2),
    rise=st.floats(0, 1),
    start=st.floats(0, 1),
    end=st.floats(0, 1),
)
def test_cosine_equals_megatron(total, warmup_share, share, rise, start, end):
    warmup, tokens = int(total * warmup_share), int(total * share)
    first = rise * start
    cosine = cosine_of(total, warmup, warmup_from=first, start=start, end=end)
    expected = megatron_get_lr(tokens, first, start, end, warmup, total)
    assert cosine(tokens) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_a_shortened_cosine_equals_the_start_of_the_longer_one() -> None:
    longer, cut = cosine_of(1_000, 100), cosine_of(700, 100, planned_tokens=1_000)
    assert [cut(tokens) for tokens in range(701)] == [longer(tokens) for tokens in range(701)]
    assert cut(900) == longer(700) > 0.1
    # The second half alone, like OLMo-core's HalfCosWithWarmup.
    later, whole = cosine_of(300, planned_tokens=1_000, skipped_tokens=500), cosine_of(1_000)
    assert [later(tokens) for tokens in range(301)] == [whole(n) for n in range(500, 801)]


def test_cosine_passes_through_points_computed_by_hand() -> None:
    cosine = cosine_of(1_100, 100)
    assert cosine(0) == 0.0
    assert cosine(50) == 0.5
    assert cosine(100) == 1.0
    assert cosine(350) == pytest.approx(0.1 + 0.45 * (1 + math.sqrt(0.5)))
    assert cosine(600) == pytest.approx(0.55)
    assert cosine(1_100) == cosine(5_000) == 0.1


@pytest.mark.parametrize(
    ("warmup", "first", "expected"),
    [
        (10, 0.0, [0.0, 0.3, 0.6, 0.6, 0.6]),
        (10, 0.2, [0.2, 0.4, 0.6, 0.6, 0.6]),
        (0, 0.2, [0.6] * 5),
    ],
)
def test_constant_warms_up_and_stays(warmup: int, first: float, expected: list[float]) -> None:
    constant = Constant(total_tokens=100, warmup_tokens=warmup, warmup_from=first, value=0.6)
    assert [constant(tokens) for tokens in (0, 5, 10, 99, 200)] == pytest.approx(expected)


def test_phases_meet_at_exact_tokens_and_the_last_one_stays() -> None:
    chain = Chain(
        phases={
            "broad": cosine_of(3 * T),
            "hold": Constant(total_tokens=T, warmup_tokens=0, warmup_from=0.0, value=0.2),
            "fine": cosine_of(3 * T, start=0.3, end=0.05),
        }
    )
    assert chain.total_tokens == 7 * T
    assert chain(3 * T - 1) == pytest.approx(0.1)
    assert [chain(3 * T), chain(4 * T - 1), chain(4 * T)] == [0.2, 0.2, 0.3]
    assert chain(4 * T + 3 * T // 2) == pytest.approx(0.175)
    assert chain(7 * T) == chain(8 * T) == 0.05


def wsd(
    shape: Shape, *, warmup: int, decay: int, total: int, **ends: float
) -> WarmupStableDecay:
    """Make a schedule that rises from 0 to 1 and decays to 0, except for ``ends``."""
    ends = {"warmup_from": 0.0, "start": 1.0, "end": 0.0} | ends
    return WarmupStableDecay(
        total_tokens=total, warmup_tokens=warmup, decay_tokens=decay, decay_shape=shape, **ends
    )


@pytest.mark.parametrize("shape", ["linear", "1-sqrt", "cosine"])
@pytest.mark.parametrize(("warmup", "decay"), [(0, 100), (7, 20), (1, 99), (30, 1)])
def test_warmup_stable_decay_equals_transformers(shape: Shape, warmup: int, decay: int) -> None:
    # Theirs warms up from the smallest rate, and counts the steps before a step.
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    steps: dict[str, Any] = {
        "num_warmup_steps": warmup,
        "num_decay_steps": decay,
        "num_training_steps": 100,
    }
    theirs = get_wsd_schedule(optimizer, **steps, decay_type=shape, min_lr_ratio=0.1)
    batch = 512
    lengths = {"warmup": warmup * batch, "decay": decay * batch, "total": 100 * batch}
    ours = wsd(shape, **lengths, warmup_from=0.1, end=0.1)
    for step in range(105):
        assert ours(step * batch) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        theirs.step()


def test_the_exponential_decay_equals_megatron() -> None:
    # OptimizerParamScheduler.get_lr with lr_wsd_decay_style: coeff = 2 x 0.5^ratio - 1
    ours = wsd("exponential", warmup=0, decay=T, total=2 * T, end=0.2)
    for ratio in (0.25, 0.5, 0.75):
        coeff = (2.0 * math.pow(0.5, ratio)) - 1.0
        expected = 0.2 + coeff * (1.0 - 0.2)
        assert ours(T + int(ratio * T)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("shape", "area"),
    [("linear", 1 / 2), ("1-sqrt", 1 / 3), ("cosine", 1 / 2), ("exponential", 0.442695)],
)
def test_areas_under_the_decays_equal_the_integrals(shape: Shape, area: float) -> None:
    decay, points = wsd(shape, warmup=0, decay=T, total=T), 20_000
    middles = (decay(T * (2 * point + 1) // (2 * points)) for point in range(points))
    assert sum(middles) / points == pytest.approx(area, abs=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@given(
    total=st.integers(2, 6 * T),
    parts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    ends=st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
)
def test_a_decay_begins_at_its_peak_falls_and_ends_exactly(shape, total, parts, ends):
    warmup = min(int(total * parts[0]), total - 1)
    decay = max(1, int((total - warmup) * parts[1]))
    first, end, start = sorted(ends)
    ours = wsd(
        shape, warmup=warmup, decay=decay, total=total, warmup_from=first, start=start, end=end
    )
    begin = total - decay
    stable = {ours(warmup), ours((warmup + begin) // 2), ours(begin)}
    assert stable == {start}
    assert ours(total) == ours(7 * T) == end
    falling = [ours(begin + decay * eighth // 8) for eighth in range(9)]
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_decay_leaves_its_peak_without_a_jump(shape: Shape) -> None:
    ours = wsd(shape, warmup=T, decay=T, total=4 * T)
    assert ours(3 * T - 1) == 1.0
    assert 0.999998 < ours(3 * T + 1) <= 1.0  # the root falls by 1e-6 with the first token


def test_a_decay_directly_after_the_warmup_has_no_stable_part() -> None:
    ours = wsd("linear", warmup=100, decay=900, total=1_000)
    assert [ours(at) for at in (50, 100, 550, 1_000)] == [0.5, 1.0, 0.5, 0.0]


def test_a_chain_can_be_written_in_a_recipe() -> None:
    where = "components.optim.schedules."
    phase = {"_target_": where + "Constant", "warmup_tokens": 0, "warmup_from": 0.0}
    tree = {
        "_target_": where + "Chain",
        "phases": {
            "one": {**phase, "total_tokens": 5, "value": 1.0},
            "two": {**phase, "total_tokens": 5, "value": 0.5},
        },
    }
    chain = instantiate(tree, _convert_="all")
    assert [chain(4), chain(5)] == [1.0, 0.5]


def test_schedules_need_no_torch() -> None:
    code = "import sys, components.optim.schedules; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


BLOOM_SEQUENCE = 2048
MULA_STEP_TOKENS = 3072 * 2048
MULA_DATA_TOKENS = 4_000_000_000_000

BLOOM_176B = cosine_of(200_000_000 * BLOOM_SEQUENCE, 183_105 * BLOOM_SEQUENCE, end=6e-6 / 6e-5)
BLOOM_RAMP = BatchRamp(
    full_samples=2048, start_samples=192, increment_samples=16, ramp_samples=9_765_625
)
MULA = cosine_of(MULA_DATA_TOKENS, 2_500 * MULA_STEP_TOKENS, warmup_from=0.1)


# bigscience's chronicles of the 176B run
BLOOM_LOG = {12_695: "5.969e-05", 31_214: "5.279e-05", 42_780: "4.475e-05"}
BLOOM_LOG |= {85_376: "1.150e-05", 94_768: "7.610e-06"}


def test_bloom176b_has_the_logged_rates() -> None:
    for iteration, logged in BLOOM_LOG.items():
        tokens = BLOOM_RAMP.consumed_after(iteration) * BLOOM_SEQUENCE
        assert f"{6e-5 * BLOOM_176B(tokens):.3e}" == logged


def test_bloom176b_ends_at_its_smallest_rate_and_stays_there() -> None:
    horizon = 409_600_000_000
    last = BLOOM_RAMP.consumed_after(115_311) * BLOOM_SEQUENCE
    assert [6e-5 * BLOOM_176B(at) for at in (horizon, last)] == pytest.approx([6e-6, 6e-6])


# github.com/epfLLM/Megatron-LLM, issue 11: batch 1024, peak 1.5e-4 after 2,000 iterations. The
# line of an iteration gives the rate at the samples consumed with it, so the next one's.
MEGATRON_LOG = {122: (124_928, "9.150e-06"), 123: (125_952, "9.225e-06")}
MEGATRON_LOG |= {124: (126_976, "9.300e-06"), 125: (128_000, "9.375e-06")}


def test_megatron_logs_the_rate_at_the_samples_after_the_step() -> None:
    cosine, ramp = cosine_of(250_000 * 1024, 2_000 * 1024), BatchRamp.from_constant(1024)
    for iteration, (samples, logged) in MEGATRON_LOG.items():
        assert ramp.consumed_after(iteration) == samples
        assert f"{1.5e-4 * cosine(samples):.3e}" == logged
        assert f"{1.5e-4 * cosine(ramp.consumed_after(iteration - 1)):.3e}" != logged


def test_mula_takes_the_derived_number_of_steps() -> None:
    for budget_tokens, steps in ((MULA_DATA_TOKENS, 635_783), (100_000_000_000, 15_895)):
        assert BatchRamp.from_constant(3072).count_steps(-(-budget_tokens // 2048)) == steps


def test_mula_warms_up_from_its_smallest_rate_and_returns_to_it() -> None:
    for step in (0, 1, 1_250, 2_499, 2_500):
        expected = 4e-5 + (4e-4 - 4e-5) * step / 2_500
        assert 4e-4 * MULA(step * MULA_STEP_TOKENS) == pytest.approx(expected, rel=1e-12)
    assert 4e-4 * MULA(MULA_DATA_TOKENS) == pytest.approx(4e-5)


def test_short_runs_of_mula_stay_near_the_peak() -> None:
    for data_tokens in (4_000_000_000_000, 4_050_000_000_000):
        whole = cosine_of(data_tokens, MULA.warmup_tokens, warmup_from=0.1)
        assert f"{4e-4 * whole(100_000_000_000):.3e}" == "3.996e-04"


# Megatron flags: lr 1.5e-4, lr-warmup-fraction 0.01, lr-decay-iters 320,000, min-lr 0
@pytest.mark.parametrize("step_tokens", [131_072, 16_384, 614_400])  # 3.6B, 20B, 175B
def test_the_scaling_study_warms_up_for_a_hundredth_of_its_horizon(step_tokens: int) -> None:
    cosine = cosine_of(320_000 * step_tokens, 3_200 * step_tokens, end=0.0)
    after = {step: 1.5e-4 * cosine(step * step_tokens) for step in (1, 10, 3_200, 320_000)}
    assert after == pytest.approx(
        {1: 4.6875e-8, 10: 4.6875e-7, 3_200: 1.5e-4, 320_000: 0.0}, rel=1e-12
    )
    assert cosine((3_200 + 158_400) * step_tokens) == pytest.approx(0.5)


def test_teuken_hands_over_at_three_trillion_tokens() -> None:
    second = cosine_of(3 * T, start=0.1, end=0.05)
    chain = Chain(phases={"first": cosine_of(3 * T, 8_388_608_000), "second": second})
    trillions = (3, 4, 6)
    rates = [f"{3e-4 * chain(count * 10**12):.2e}" for count in trillions]
    assert rates == ["3.00e-05", "2.63e-05", "1.50e-05"]
