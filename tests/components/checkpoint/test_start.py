"""A run begins with its parent's checkpoint, or goes back to one or to weights alone."""

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.checkpoint import loading
from components.checkpoint.choice import check_alone, newest_whole
from components.checkpoint.metadata import CheckpointKind, Marker, RunProgress
from components.checkpoint.retention import Policy, prune_checkpoints
from components.checkpoint.start import ASIDE, find_earlier, find_start, put_start
from components.config.check import check_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.run.folder import RunFolder
from components.run.history import read_lines
from tests.components.checkpoint.checkpoint_cases import Rank, start, state_of, train
from tests.components.checkpoint.damage_cases import flip
from tests.components.checkpoint.numbers import Counted
from tests.components.checkpoint.saving_cases import make_saver
from tests.components.distributed.layout_cases import Layout
from tests.components.distributed.tensor_cases import Parts

PARTS, ALONE = Parts(), Layout()
STEP = 4_096  # tokens
KINDS: tuple[CheckpointKind, ...] = ("tokens", "weights")
ABOUT_ITSELF = ("ignore::FutureWarning", "ignore::UserWarning")
pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.filterwarnings(*ABOUT_ITSELF),  # torch's own, while it saves and loads
]


@cache
def parent() -> Recipe:
    return compose_recipe(read_point(["recipe=teuken7b"]))


def child(run: Path | None, takes: str, steps: int, /, **changed: object) -> Recipe:
    section = {"run": str(run), "at_tokens": steps * STEP, "with": takes}
    section |= {"fingerprint": compute_fingerprint(parent())} | changed
    if run is None:
        del section["run"]
    return check_recipe({**parent().model_dump(mode="json"), "from": section})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with full checkpoints after 1 and 3 steps, and weights alone after 2."""
    folder = RunFolder(tmp_path / "parent")
    folder.checkpoints.mkdir(parents=True)
    folder.write_recipe(parent())
    saver = make_saver(folder.checkpoints, fingerprint=compute_fingerprint(parent()))
    for step, kind in ((1, "tokens"), (2, "weights"), (3, "tokens")):
        state = Counted(step, 8)
        progress = RunProgress(step=step, tokens=step * STEP)
        kinds: list[CheckpointKind] = [one for one in KINDS if one == kind]
        saver.start_save(state, progress, kinds=kinds, held_out_loss=2.0)
        saver.wait_for_save()
    saver.close()
    return folder.path


def begun(recipe: Recipe, path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.checkpoints.mkdir(parents=True)
    found = find_start(recipe)
    put_start(folder, found)
    put_start(folder, found)  # once more, as after a kill: nothing is there to do
    return folder


def test_a_child_has_the_same_files_under_its_own_fingerprint(run, tmp_path):
    recipe = child(run, "optimizer", 3)
    folder = begun(recipe, tmp_path / "child")
    (there,) = folder.checkpoints.iterdir()
    marker = check_alone(there)
    assert (marker.fingerprint, marker.held_out_loss) == (compute_fingerprint(recipe), 2.0)
    assert marker.progress == RunProgress(step=3, tokens=3 * STEP)
    assert not marker.fresh_optimizer
    for name in marker.files:
        assert Path(there / name).samefile(run / "checkpoints" / there.name / name)
    (event,) = read_lines(folder.events)
    assert (event["kind"], event["step"]) == ("branch", 3)


@pytest.mark.parametrize("steps", [2, 3])
def test_a_child_with_weights_alone_starts_at_0_tokens(run, tmp_path, steps: int) -> None:
    folder = begun(child(run, "weights", steps), tmp_path / "child")
    (there,) = folder.checkpoints.iterdir()
    marker = check_alone(there)
    assert there.name == f"tokens-{0:015d}"
    assert marker.progress == RunProgress(step=0, tokens=0)
    assert marker.fresh_optimizer
    assert marker.held_out_loss is None


def test_a_child_removes_no_file_of_its_parent(run: Path, tmp_path: Path) -> None:
    folder = begun(child(run, "optimizer", 3), tmp_path / "child")
    later = make_saver(folder.checkpoints)
    progress = RunProgress(step=4, tokens=4 * STEP)
    later.start_save(Counted(4, 8), progress, kinds=["tokens"], held_out_loss=None)
    later.wait_for_save()
    later.close()
    prune_checkpoints(folder.checkpoints, Policy(last=1, every_tokens="none", best=0))
    assert [one.name for one in folder.checkpoints.iterdir()] == [f"tokens-{4 * STEP:015d}"]
    check_alone(run / "checkpoints" / f"tokens-{3 * STEP:015d}")


def test_without_links_files_are_copied(run, tmp_path, monkeypatch):
    def refuses(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "link", refuses)
    folder = begun(child(run, "optimizer", 3), tmp_path / "child")
    (there,) = folder.checkpoints.iterdir()
    for name in check_alone(there).files:
        assert not Path(there / name).samefile(run / "checkpoints" / there.name / name)


@pytest.mark.parametrize(
    ("takes", "steps", "changed", "message"),
    [
        ("optimizer", 2, {}, "from.at_tokens: no checkpoint at 8_192 tokens in"),
        ("optimizer", 2, {}, "nearest checkpoints: 4_096 and 12_288"),
        ("weights", 9, {}, "nearest checkpoints: 12_288"),
        ("weights", 3, {"fingerprint": "another"}, "not have the recipe fingerprint another"),
        ("weights", 3, {"run": "nowhere"}, "from.run: nowhere is not a run folder"),
    ],
)
def test_a_missing_start_is_refused(run, takes, steps, changed, message):
    with pytest.raises(RecipeError) as caught:
        find_start(child(run, takes, steps, **changed))
    assert message in str(caught.value)


def test_a_parent_has_a_folder_and_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="the parent's folder is not set"):
        find_start(child(None, "weights", 3, recipe="teuken7b"))
    folder = RunFolder(tmp_path / "empty")
    folder.checkpoints.mkdir(parents=True)
    folder.write_recipe(parent())
    with pytest.raises(RecipeError, match="the folder has no checkpoint"):
        find_start(child(folder.path, "weights", 3))


def test_a_damaged_checkpoint_is_no_start(run: Path, tmp_path: Path) -> None:
    checkpoint = run / "checkpoints" / f"tokens-{3 * STEP:015d}"
    flip(next(checkpoint.glob("*.safetensors")), -1)
    with pytest.raises(RecipeError, match="all checkpoints are damaged"):
        find_start(child(run, "optimizer", 3))
    assert not list(begun(parent(), tmp_path / "child").checkpoints.iterdir())


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


class Rewound(NamedTuple):
    checkpoint: Path
    marker: Marker
    left: tuple[str, ...]


def rewind(folder: Path, tokens: int, *, fresh_optimizer: bool) -> Rewound:
    run = RunFolder(folder.parent)
    run.write_recipe(parent())
    found = find_earlier(run, tokens, fresh_optimizer=fresh_optimizer)
    left = put_start(run, found)
    checkpoint = run.checkpoints / found.marker.folder_name
    return Rewound(checkpoint, check_alone(checkpoint), tuple(left))


def trained(folder: Path, *kinds: tuple[CheckpointKind, ...]) -> Rank:
    """Train a step before each save; the checkpoints have 10, 20, 30 tokens."""
    rank = start(PARTS, ALONE, seed=0)
    saver = make_saver(folder, fingerprint=compute_fingerprint(parent()))
    for step, saved in enumerate(kinds, start=1):
        train(rank, range(step - 1, step))
        saver.start_save(
            rank.state, RunProgress(step, 10 * step), kinds=saved, held_out_loss=2.0
        )
    saver.wait_for_save()
    saver.close()
    return rank


def names(folder: Path) -> list[str]:
    named = (one.name.partition("-") for one in folder.glob("*s-*"))
    return sorted(f"{kind} {int(tokens)}" for kind, _, tokens in named)


@pytest.mark.parametrize(
    "kinds", [("tokens",), ("weights",), KINDS], ids=["full", "alone", "both"]
)
def test_a_fresh_optimizer_takes_the_steps_of_a_new_one(checkpoints, kinds):
    expected = trained(checkpoints, KINDS, kinds)
    optimizer = torch.optim.AdamW(expected.optimizer.param_groups[0]["params"], lr=0.01)
    expected = expected._replace(optimizer=optimizer)
    train(expected, range(2, 4))
    there = rewind(checkpoints, 20, fresh_optimizer=True)
    assert there.marker.progress == RunProgress(2, 20)
    assert newest_whole(checkpoints).checkpoint == there.checkpoint  # type: ignore[union-attr]  # not None
    found = start(PARTS, ALONE, seed=1)
    train(found, range(5))  # its moments are not those of a new one
    fingerprint = compute_fingerprint(parent())
    progress = loading.load_checkpoint(
        there.checkpoint, there.marker, found.state, fingerprint=fingerprint
    )
    assert progress == RunProgress(2, 20)
    train(found, range(2, 4))
    ours, theirs = state_of(found), state_of(expected)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-12, atol=1e-15)


def test_later_checkpoints_are_set_aside_and_earlier_ones_stay(checkpoints: Path) -> None:
    trained(checkpoints, KINDS, KINDS, KINDS)
    there = rewind(checkpoints, 20, fresh_optimizer=False)
    assert there.left == (f"tokens-{30:015d}", f"weights-{30:015d}")
    assert names(checkpoints) == ["tokens 10", "tokens 20", "weights 10", "weights 20"]
    for one in there.left:
        assert check_alone(checkpoints / ASIDE / one).progress == RunProgress(3, 30)
    assert not check_alone(there.checkpoint).fresh_optimizer


@pytest.mark.parametrize("fresh", [False, True])
def test_a_repeated_rewind_changes_nothing(checkpoints: Path, fresh: bool) -> None:
    trained(checkpoints, KINDS, KINDS)
    first = rewind(checkpoints, 10, fresh_optimizer=fresh)
    again = rewind(checkpoints, 10, fresh_optimizer=fresh)
    assert (again.checkpoint, again.marker, again.left) == (first.checkpoint, first.marker, ())


def test_a_killed_rewind_is_done_again(checkpoints: Path) -> None:
    trained(checkpoints, ("weights",), KINDS)
    half = checkpoints / f".tokens-{10:015d}"
    half.mkdir()
    (half / "torn.safetensors").write_text("torn")
    there = rewind(checkpoints, 10, fresh_optimizer=True)
    assert check_alone(there.checkpoint) == there.marker


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (20, "at_tokens: no checkpoint at 20 tokens in .*\n  nearest checkpoints: 10"),
        (7, "no checkpoint at 7 tokens"),
    ],
)
def test_weights_alone_need_a_fresh_optimizer(checkpoints, tokens, message):
    trained(checkpoints, KINDS, ("weights",))
    other = checkpoints.parent / "other" / "checkpoints"
    other.mkdir(parents=True)
    with pytest.raises(RecipeError, match=message):
        rewind(checkpoints, tokens, fresh_optimizer=False)
    with pytest.raises(RecipeError, match="the folder has no checkpoint"):
        rewind(other, 10, fresh_optimizer=True)
    assert names(checkpoints) == ["tokens 10", "weights 10", "weights 20"]
