"""What the action that merges checkpoints has to be told."""

from pathlib import Path

import pytest

from command.actions.merge import run
from command.arguments import read_point
from components.errors import RecipeError

WRONG = {
    "last: it is not said how many": ("file=out",),
    "last: 0 is no number of checkpoints": ("file=out", "last=0"),
    "file: no folder is named": ("last=2",),
    "ema_decay: average=ema and what it keeps": ("last=2", "file=out", "average=ema"),
    "ema_decay: 2 is no part of 1": ("last=2", "file=out", "average=ema", "ema_decay=2"),
    "average: 'mean' is not known": ("last=2", "file=out", "average=mean"),
    "run: nowhere is no run folder": ("last=2", "file=out", "run=nowhere"),
}


@pytest.mark.parametrize("message", WRONG)
def test_it_has_to_be_told_what_becomes_what(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError) as caught:
        run(read_point(["action=merge", *WRONG[message]]))
    assert str(caught.value).startswith(message)
