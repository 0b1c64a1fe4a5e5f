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
            r"profiler\.first_step: 149 and profiler\.steps 3 end with step 151, but the last "
            r"step is 150(.|\n)*set profiler\.first_step=148 or less",
        ),
        (
            "profiler.steps=151 profiler.first_step=1",
            r"profiler\.first_step: 1 and profiler\.steps 151 end with step 151(.|\n)*"
            r"set profiler\.first_step=1 profiler\.steps=150 or less",
        ),
        (
            "profiler.steps=1 profiler.ranks=[0,2] cluster.ranks=2",
            r"profiler\.ranks: there is no rank 2: the last rank is 1(.|\n)*ranks up to 1",
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
