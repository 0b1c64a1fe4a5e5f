"""What the loop cannot train is refused before anything is written; the rest passes."""

import pytest

from command.arguments import read_point
from command.compose import compose_recipe
from components.errors import RecipeError
from components.train.launch import check_trainable


@pytest.mark.parametrize(
    "words",
    [
        "teuken7b cluster.ranks=8",
        "bloom176b cluster.ranks=8",
        "gpt175b cluster.ranks=8",
        "mula20b_a2b cluster.ranks=2",
    ],
)
def test_pipeline_tensor_and_data_together_are_trained(words: str) -> None:
    recipe, ranks = words.split()
    check_trainable(compose_recipe(read_point([f"recipe={recipe}", ranks])))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "teuken7b cluster.ranks=2 parallelism.context=2",
            r"parallelism\.context: 2: training over this axis does not exist yet\n  set",
        ),
        ("mula20b_a2b cluster.ranks=4", r"parallelism\.expert: 2: training over this axis"),
        (
            "mula220b_a10b cluster.ranks=4",
            r"parallelism\.pipeline: 2: training a mixture of experts over this axis does not",
        ),
        (
            "mula7b_a1b cluster.ranks=2 parallelism.tensor=2",
            r"parallelism\.tensor: 2: training a mixture of experts over this axis does not",
        ),
        ("teuken7b cluster=juwels", r"cluster: 128 nodes of juwels are not this machine"),
    ],
)
def test_what_does_not_exist_yet_says_so(words: str, message: str) -> None:
    recipe, *keys = words.split()
    composed = compose_recipe(read_point([f"recipe={recipe}", *keys]))
    with pytest.raises(RecipeError, match=message):
        check_trainable(composed)
