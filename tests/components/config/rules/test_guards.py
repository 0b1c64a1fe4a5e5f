"""Guards and rehearsals that could do nothing are refused, with a way out."""

import pytest

from components.config.fingerprint import compute_fingerprint
from components.errors import RecipeError
from tests.components.config.conftest import Compose
from tests.components.config.rules.test_engine import DEEPSPEED


def test_the_word_nan_is_a_fault_not_a_number(compose: Compose) -> None:
    (fault,) = compose("guard.inject=[{fault: nan, rank: 0, step: 1}]").guard.inject
    assert (fault.fault, fault.rank, fault.step) == ("nan", 0, 1)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_deepspeed_tells_the_norm_too_late(compose: Compose, zero: int) -> None:
    words = (*DEEPSPEED, "guard=spikes", f"parallelism.zero={zero}")
    with pytest.raises(
        RecipeError,
        match=rf"guard\.gradient_norm_spike: DeepSpeed at zero={zero} computes the norm only "
        r"after the update\n  set guard\.gradient_norm_spike=none, ",
    ):
        compose(*words)
    assert compose(*words, "guard.gradient_norm_spike=none").guard.loss_spike != "none"
    assert compose(*words[:-1], "parallelism.zero=0").guard.gradient_norm_spike != "none"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "{fault: nan, rank: 1, step: 1}",
            r"guard\.inject\.0\.rank: 1 is more than the last rank 0\n  write guard",
        ),
        (
            "{fault: nan, rank: 0, step: 1_000_000_000}",
            r"guard\.inject\.0\.step: 1,000,000,000 is more than the last step ",
        ),
        (
            "{fault: gremlin, rank: 0, step: 1}",
            r"guard\.inject\.0: .*'gremlin' .*'nan', 'spike'",
        ),
        ("{fault: nan, rank: 0}", r"guard\.inject\.0.*step: missing"),
        (
            "{fault: bit_flip, rank: 0, step: 1, bit: 32}",
            r"guard\.inject\.0.*bit: .* 31, got 32",
        ),
    ],
)
def test_a_fault_that_would_never_strike_is_refused(
    compose: Compose, fault: str, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        compose("cluster.ranks=1", f"guard.inject=[{fault}]")


def test_windows_that_are_left_out_change_the_mathematics_and_none_does_not(
    compose: Compose,
) -> None:
    recipe, skipping = compose(), compose("data.skip=[[16, 8], [64, 8]]")
    assert skipping.data.skip == ((16, 8), (64, 8))
    assert compute_fingerprint(recipe) != compute_fingerprint(skipping)
    with pytest.raises(RecipeError, match=r"data\.skip\.0\.1: .* greater than 0, got 0"):
        compose("data.skip=[[16, 0]]")
