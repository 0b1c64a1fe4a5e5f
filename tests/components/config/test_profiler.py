"""What cannot be profiled, by path, value and way out."""

import pytest

from components.config.fingerprint import compute_fingerprint
from components.errors import RecipeError
from tests.components.config.conftest import Compose


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "profiler.steps=3 profiler.first_step=149",
            r"profiler\.first_step: 149 is more than the last valid first step for "
            r"profiler\.steps, 148\n  write profiler\.first_step=148 or less",
        ),
        (
            "profiler.steps=151 profiler.first_step=1",
            r"profiler\.steps: 151 is more than the number of steps of the run, 150\n"
            r"  write profiler\.steps=150 or less",
        ),
        (
            "profiler.steps=1 profiler.ranks=[0,2] cluster.ranks=2",
            r"profiler\.ranks: 2 is more than the last rank 1\n",
        ),
        ("profiler.ranks=[]", r"profiler\.ranks: tuple should have at least 1 item"),
    ],
)
def test_what_is_not_there_cannot_be_profiled(
    compose: Compose, words: str, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        compose(*words.split())


def test_the_last_step_can_be_profiled_and_no_weight_depends_on_it(compose: Compose) -> None:
    profiled = compose("profiler.steps=3", "profiler.first_step=148")
    assert compute_fingerprint(profiled) == compute_fingerprint(compose())
