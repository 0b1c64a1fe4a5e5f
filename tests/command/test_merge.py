"""What the action that merges checkpoints has to be told."""

from pathlib import Path

import pytest

from command.actions.merge import run, warnings_between
from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.errors import RecipeError

WRONG = {
    "last: the number of checkpoints is required": ("file=out",),
    "last: input should be greater than 0, got 0": ("file=out", "last=0"),
    "file: a new folder is required": ("last=2",),
    "ema_decay: average=ema and ema_decay require": ("last=2", "file=out", "average=ema"),
    "ema_decay: input should be less": ("last=2", "file=out", "average=ema", "ema_decay=2"),
    "average: input should be 'uniform', 'ema'": ("last=2", "file=out", "average=mean"),
    "run: nowhere is not a run folder": ("last=2", "file=out", "run=nowhere"),
}


@pytest.mark.parametrize("message", WRONG)
def test_merge_needs_its_words(message: str, folder: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        run(read_point(["action=merge", *WRONG[message]]))
    assert str(caught.value).startswith(message)


def test_a_mixture_change_within_the_window_has_a_warning() -> None:
    phases = "{a: {from_tokens: 307_200, fresh_optimizer: true}}"
    mixture = "{b: {from_tokens: 204_800, shares: {python_docs: 1.0}}}"
    words = ["recipe=teuken7b", f"phases={phases}", f"data.phases={mixture}"]
    recipe = compose_recipe(read_point(words))
    assert warnings_between(recipe, 100_000, 400_000) == [
        "the mixture changes after 204,800 tokens, between the averaged checkpoints",
        "a phase changes after 307,200 tokens, between the averaged checkpoints",
    ]
    assert not warnings_between(recipe, 307_200, 400_000)
