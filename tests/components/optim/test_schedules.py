"""Schedules against Megatron's formula, points computed by hand, and their rules."""

import math
import subprocess
import sys

import pytest
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st

from components.optim.schedules import Chain, Constant, Cosine

T = 10**12


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
