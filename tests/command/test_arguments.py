"""Words of the command line that are known and not yet granted."""

import pytest

from command.arguments import read_point
from components.errors import RecipeError


def test_a_layout_by_itself_comes_with_the_planner() -> None:
    with pytest.raises(
        RecipeError,
        match=r"^parallelism: 'auto' comes with a search over layouts, which does not exist "
        r"yet\n"
        r"  name the degrees: parallelism\.tensor=\.\.\., parallelism\.pipeline=\.\.\.$",
    ):
        read_point(["recipe=teuken7b", "parallelism=auto"])


def test_another_layout_is_unknown() -> None:
    with pytest.raises(RecipeError, match=r"^parallelism: there is no parallelism 'fast'"):
        read_point(["recipe=teuken7b", "parallelism=fast"])
