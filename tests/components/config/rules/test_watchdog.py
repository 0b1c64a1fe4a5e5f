"""What the watchdog refuses, by path, value and way out."""

import pytest

from command.arguments import read_point
from command.compose import compose_recipe
from components.errors import RecipeError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "watchdog.step_seconds=10.0 watchdog.pause_seconds=5.0",
            r"watchdog\.pause_seconds: 5 is less than step_seconds 10(.|\n)*"
            r"set watchdog\.pause_seconds=10 or more",
        ),
        (
            "watchdog.restarts=1",
            r"watchdog\.restarts: 1, but a single rank here has no agent",
        ),
        (
            "cluster.ranks=2 watchdog.restarts=1 cluster.spare_nodes=1",
            r"cluster\.spare_nodes: 1, but without a scheduler there is no job to have them",
        ),
        (
            "cluster=juwels cluster.spare_nodes=2 cluster.preflight=none",
            r"cluster\.spare_nodes: 2, but a run that neither looks at its nodes nor(.|\n)*"
            r"leave cluster\.preflight as it is, or set watchdog\.restarts=3",
        ),
        ("watchdog.slow_ratio=1.0", r"watchdog\.slow_ratio: input should be greater than 1"),
    ],
)
def test_what_cannot_be_watched_is_refused(words: str, message: str) -> None:
    named = [] if words.startswith("recipe=") else ["recipe=teuken7b"]
    with pytest.raises(RecipeError, match=message):
        compose_recipe(read_point([*named, *words.split()]))
