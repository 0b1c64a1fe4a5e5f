"""The first checkpoint of a run is its parent's: found, checked, and put into its folder."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.checkpoint.choice import check_alone
from components.checkpoint.metadata import CheckpointKind, RunProgress
from components.checkpoint.retention import Policy, prune_checkpoints
from components.checkpoint.start import find_start, put_start
from components.config.check import check_recipe
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.run.folder import RunFolder
from components.run.history import read_lines
from tests.components.checkpoint.numbers import Counted
from tests.components.checkpoint.saving_cases import make_saver

STEP = 4_096  # tokens
KINDS: tuple[CheckpointKind, ...] = ("tokens", "weights")


@pytest.fixture(scope="module", autouse=True)
def _world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


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


def test_what_goes_on_has_the_same_files_under_its_own_fingerprint(
    run: Path, tmp_path: Path
) -> None:
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
def test_weights_alone_begin_at_0_whichever_kind_they_are(
    run: Path, tmp_path: Path, steps: int
) -> None:
    folder = begun(child(run, "weights", steps), tmp_path / "child")
    (there,) = folder.checkpoints.iterdir()
    marker = check_alone(there)
    assert there.name == f"tokens-{0:015d}"
    assert marker.progress == RunProgress(step=0, tokens=0)
    assert marker.fresh_optimizer
    assert marker.held_out_loss is None


def test_what_the_child_removes_stays_with_the_parent(run: Path, tmp_path: Path) -> None:
    folder = begun(child(run, "optimizer", 3), tmp_path / "child")
    later = make_saver(folder.checkpoints)
    progress = RunProgress(step=4, tokens=4 * STEP)
    later.start_save(Counted(4, 8), progress, kinds=["tokens"], held_out_loss=None)
    later.wait_for_save()
    later.close()
    prune_checkpoints(folder.checkpoints, Policy(last=1, every_tokens="none", best=0))
    assert [one.name for one in folder.checkpoints.iterdir()] == [f"tokens-{4 * STEP:015d}"]
    check_alone(run / "checkpoints" / f"tokens-{3 * STEP:015d}")


def test_where_no_link_can_be_made_there_are_copies(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "link", refuses)
    folder = begun(child(run, "optimizer", 3), tmp_path / "child")
    (there,) = folder.checkpoints.iterdir()
    for name in check_alone(there).files:
        assert not Path(there / name).samefile(run / "checkpoints" / there.name / name)


def test_a_run_without_a_parent_begins_with_nothing(tmp_path: Path) -> None:
    assert not list(begun(parent(), tmp_path / "child").checkpoints.iterdir())


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
def test_what_is_not_there_is_said(
    run: Path, takes: str, steps: int, changed: dict[str, str], message: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        find_start(child(run, takes, steps, **changed))
    assert message in str(caught.value)


def test_to_train_the_folder_has_to_be_named_and_hold_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="the parent's folder is not set"):
        find_start(child(None, "weights", 3, recipe="teuken7b"))
    folder = RunFolder(tmp_path / "empty")
    folder.checkpoints.mkdir(parents=True)
    folder.write_recipe(parent())
    with pytest.raises(RecipeError, match="the folder has no checkpoint"):
        find_start(child(folder.path, "weights", 3))


def test_a_damaged_checkpoint_is_none(run: Path) -> None:
    checkpoint = run / "checkpoints" / f"tokens-{3 * STEP:015d}"
    file = next(checkpoint.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(RecipeError, match="all checkpoints are damaged"):
        find_start(child(run, "optimizer", 3))
