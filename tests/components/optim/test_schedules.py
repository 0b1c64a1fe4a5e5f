"""Schedules against Megatron's formula, points computed by hand, and their rules."""

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

from components.optim.schedules import Chain, Constant, Cosine, WarmupStableDecay

T = 10**12
Shape = Literal["linear", "1-sqrt", "cosine", "exponential"]
SHAPES: tuple[Shape, ...] = get_args(Shape)


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
def test_cosine_is_megatrons(
    total: int, warmup_share: float, share: float, rise: float, start: float, end: float
) -> None:
    warmup, tokens = int(total * warmup_share), int(total * share)
    first = rise * start
    cosine = Cosine(
        total_tokens=total, warmup_tokens=warmup, warmup_from=first, start=start, end=end
    )
    expected = megatron_get_lr(tokens, first, start, end, warmup, total)
    assert cosine(tokens) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_a_cosine_planned_for_more_is_the_longer_one_up_to_its_cut() -> None:
    shape: dict[str, Any] = {"warmup_tokens": 100, "warmup_from": 0.0, "start": 1.0, "end": 0.1}
    longer = Cosine(total_tokens=1_000, **shape)
    cut = Cosine(total_tokens=700, planned_tokens=1_000, **shape)
    assert [cut(tokens) for tokens in range(701)] == [longer(tokens) for tokens in range(701)]
    assert cut(900) == longer(700) > 0.1
    # Its second half by itself, as OLMo-core's HalfCosWithWarmup has it.
    half: dict[str, Any] = {"warmup_tokens": 0, "warmup_from": 0.0, "start": 1.0, "end": 0.1}
    later = Cosine(total_tokens=300, planned_tokens=1_000, skipped_tokens=500, **half)
    whole = Cosine(total_tokens=1_000, **half)
    assert [later(tokens) for tokens in range(301)] == [whole(n) for n in range(500, 801)]


def test_cosine_passes_through_points_computed_by_hand() -> None:
    cosine = Cosine(total_tokens=1_100, warmup_tokens=100, warmup_from=0.0, start=1.0, end=0.1)
    assert cosine(0) == 0.0
    assert cosine(50) == 0.5
    assert cosine(100) == 1.0
    assert cosine(350) == pytest.approx(0.1 + 0.45 * (1 + math.sqrt(0.5)))
    assert cosine(600) == pytest.approx(0.55)
    assert cosine(1_100) == cosine(5_000) == 0.1


def test_constant_warms_up_and_stays() -> None:
    constant = Constant(total_tokens=100, warmup_tokens=10, warmup_from=0.0, value=0.5)
    assert [constant(tokens) for tokens in (0, 5, 10, 99, 200)] == [0.0, 0.25, 0.5, 0.5, 0.5]


def test_a_warmup_may_begin_above_zero() -> None:
    constant = Constant(total_tokens=100, warmup_tokens=10, warmup_from=0.2, value=0.6)
    cosine = Cosine(total_tokens=100, warmup_tokens=10, warmup_from=0.1, start=1.0, end=0.1)
    assert [constant(tokens) for tokens in (0, 5, 10)] == pytest.approx([0.2, 0.4, 0.6])
    assert [cosine(tokens) for tokens in (0, 5, 10)] == pytest.approx([0.1, 0.55, 1.0])


def test_a_schedule_without_warmup_starts_at_its_peak() -> None:
    assert Constant(total_tokens=9, warmup_tokens=0, warmup_from=0.0, value=1.0)(0) == 1.0
    assert (
        Cosine(total_tokens=9, warmup_tokens=0, warmup_from=0.0, start=0.7, end=0.1)(0) == 0.7
    )


def test_phases_meet_at_exact_tokens_and_the_last_one_stays() -> None:
    chain = Chain(
        phases={
            "broad": Cosine(
                total_tokens=3 * T, warmup_tokens=0, warmup_from=0.0, start=1.0, end=0.1
            ),
            "hold": Constant(total_tokens=T, warmup_tokens=0, warmup_from=0.0, value=0.2),
            "fine": Cosine(
                total_tokens=3 * T, warmup_tokens=0, warmup_from=0.0, start=0.3, end=0.05
            ),
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
    """Give a schedule from 0 over 1 to 0, but for ``ends``."""
    ends = {"warmup_from": 0.0, "start": 1.0, "end": 0.0} | ends
    return WarmupStableDecay(
        total_tokens=total,
        warmup_tokens=warmup,
        decay_tokens=decay,
        decay_shape=shape,
        **ends,
    )


@pytest.mark.parametrize("shape", ["linear", "1-sqrt", "cosine"])
@pytest.mark.parametrize(("warmup", "decay"), [(0, 100), (7, 20), (1, 99), (30, 1)])
def test_warmup_stable_decay_is_transformers(shape: Shape, warmup: int, decay: int) -> None:
    # Theirs warms up from the smallest rate; a step's rate is that of the steps before it.
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = get_wsd_schedule(
        optimizer,
        num_warmup_steps=warmup,
        num_decay_steps=decay,
        num_training_steps=100,
        decay_type=shape,
        min_lr_ratio=0.1,
    )
    batch = 512
    lengths = {"warmup": warmup * batch, "decay": decay * batch, "total": 100 * batch}
    ours = wsd(shape, **lengths, warmup_from=0.1, end=0.1)
    for step in range(105):
        assert ours(step * batch) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        theirs.step()


def test_the_exponential_decay_is_megatrons() -> None:
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
def test_the_areas_under_the_decays_are_the_integrals(shape: Shape, area: float) -> None:
    decay, points = wsd(shape, warmup=0, decay=T, total=T), 20_000
    middles = (decay(T * (2 * point + 1) // (2 * points)) for point in range(points))
    assert sum(middles) / points == pytest.approx(area, abs=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@given(
    total=st.integers(2, 6 * T),
    parts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    ends=st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
)
def test_a_decay_begins_at_its_peak_falls_and_ends_exactly(
    shape: Shape, total: int, parts: tuple[float, float], ends: tuple[float, float, float]
) -> None:
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


def test_a_decay_of_all_that_the_warm_up_leaves_has_no_stable_part() -> None:
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
