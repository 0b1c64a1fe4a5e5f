"""How layers are cut into stages: for every count, and as two published runs have it."""

import subprocess
import sys
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.config.shape import Balance, stage_layers
from components.errors import RecipeError

BALANCES: tuple[Balance, ...] = ("layers", "layers_and_ends")


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, int]:
    layers = draw(st.integers(1, 200))
    return layers, draw(st.integers(1, layers))


def counts(num_layers: int, stages: int, balance: Balance) -> list[int]:
    return [len(layers) for layers in stage_layers(num_layers, stages, balance)]


@given(cut=cuts(), balance=st.sampled_from(BALANCES))
def test_every_layer_is_on_one_stage_in_order_and_no_stage_is_empty(
    cut: tuple[int, int], balance: Balance
) -> None:
    layers, stages = cut
    ranges = stage_layers(layers, stages, balance)
    assert len(ranges) == stages
    assert list(chain.from_iterable(ranges)) == list(range(layers))
    assert min(map(len, ranges)) >= 1


@given(cut=cuts(), balance=st.sampled_from(BALANCES))
def test_stages_differ_by_one_layer_at_most(cut: tuple[int, int], balance: Balance) -> None:
    load = counts(*cut, balance)
    if balance == "layers_and_ends":
        load[0] += 1
        load[-1] += 1
    assert max(load) - min(load) <= 1


@given(cut=cuts())
def test_what_does_not_divide_is_nearest_the_middle(cut: tuple[int, int]) -> None:
    load = counts(*cut, "layers")
    middle = (len(load) - 1) / 2
    surplus = [abs(stage - middle) for stage, count in enumerate(load) if count > min(load)]
    plain = [abs(stage - middle) for stage, count in enumerate(load) if count == min(load)]
    assert max(surplus, default=0) <= min(plain)


def test_seventy_layers_and_two_ends_fill_twelve_stages_as_published() -> None:
    assert counts(70, 12, "layers_and_ends") == [5, *[6] * 10, 5]


def test_the_ends_of_126_layers_on_64_stages_have_one_layer_in_both_balances() -> None:
    for balance in BALANCES:
        assert counts(126, 64, balance) == [1, *[2] * 62, 1]


def test_a_single_stage_holds_everything() -> None:
    for balance in BALANCES:
        assert stage_layers(7, 1, balance) == (range(7),)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(
        RecipeError,
        match=r"parallelism\.pipeline: 5 stages for 4 layers .*\n.*may be 4 at most",
    ):
        stage_layers(4, 5, "layers")


def test_cutting_needs_no_torch() -> None:
    code = "import sys, components.config.shape; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
