"""A run goes on from the newest whole checkpoint, never from one that is not as written."""

import random
import re
import shutil
from pathlib import Path

import pytest

from components.checkpoint.choice import newest_whole
from components.checkpoint.loading import choose_up_to, load_newest
from components.checkpoint.metadata import newest_checkpoint
from components.errors import RecipeError
from components.fault_tolerance.faults import truncate_newest
from tests.components.checkpoint import damage_cases as damages
from tests.components.checkpoint import saver_cases as cases
from tests.components.checkpoint.numbers import Counted
from tests.components.checkpoint.saving_cases import FINGERPRINT
from tests.components.distributed.ranks import Ranks

FLIPS = 25


@pytest.fixture(scope="module")
def written(two_ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    two_ranks(cases.save_steps, folder, range(1, 4))
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three checkpoints of two ranks, after steps 1, 2 and 3."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(written, tmp_path / "checkpoints"))


@pytest.mark.parametrize(("problem", "damage"), damages.DAMAGES.items())
def test_the_previous_checkpoint_is_loaded_and_all_ranks_get_the_reason(
    two_ranks, folder, problem, damage
):
    damage(folder)
    answers = two_ranks(cases.loaded, folder)
    assert answers == [answers[0]] * 2
    step, values, (said,) = answers[0]
    assert (step, values) == (2, {2.0})
    assert re.search(problem, said)
    others = {f"tokens-{tokens:015d}" for tokens in (10, 20)}
    assert {one.name for one in folder.iterdir()} == {f"damaged-tokens-{30:015d}", *others}
    assert not Path("executed").exists()
    assert two_ranks(cases.loaded, folder) == [(2, {2.0}, [])] * 2


def test_a_pickle_with_a_valid_marker_is_not_executed(two_ranks, folder):
    damages.put_a_pickle_and_mark_it(folder)
    (said,) = set(two_ranks(cases.refused_loading, folder))
    assert "is not a safetensors file of a checkpoint: Error while deserializing header" in said
    assert not Path("executed").exists()


def test_any_flipped_byte_is_detected(folder: Path) -> None:
    draw = random.Random(0)
    files = sorted(damages.newest(folder).iterdir())
    for _ in range(FLIPS):
        file, place = draw.choice(files), draw.randrange(10**6)
        damages.flip(file, place)
        chosen = newest_whole(folder)
        assert chosen is not None
        assert chosen.marker.progress.step == 2, (file, place)
        damages.flip(file, place)
    chosen = newest_whole(folder)
    assert chosen is not None
    assert (chosen.marker.progress.step, chosen.damaged) == (3, ())


def test_two_damaged_checkpoints_are_moved_together(two_ranks: Ranks, folder: Path) -> None:
    truncate_newest(folder)
    shutil.move(damages.newest(folder), folder / "kept")
    truncate_newest(folder)
    shutil.move(folder / "kept", folder / "tokens-000000000000030")
    ((step, values, damaged), _) = two_ranks(cases.loaded, folder)
    assert (step, values, len(damaged)) == (1, {1.0}, 2)


def test_a_run_with_only_damaged_checkpoints_does_not_restart(two_ranks, folder):
    for one in folder.iterdir():
        damages.flip(next(one.glob("*.safetensors")), -1)
    (said,) = set(two_ranks(cases.refused_loading, folder))
    assert f"{folder}: all checkpoints are damaged; in the newest" in said
    assert "restore a checkpoint from a copy, or start a new run" in said
    with pytest.raises(RecipeError, match="all checkpoints are damaged"):
        newest_whole(folder)
    assert newest_checkpoint(folder) is not None


@pytest.mark.usefixtures("alone")
def test_an_empty_folder_loads_nothing(tmp_path: Path) -> None:
    assert load_newest(tmp_path, Counted(0), fingerprint=FINGERPRINT) is None
    with pytest.raises(RecipeError, match="has no checkpoint to damage"):
        truncate_newest(tmp_path)


@pytest.mark.usefixtures("alone")
def test_a_rollback_ignores_later_and_damaged_checkpoints(folder: Path) -> None:
    def step(tokens: int) -> int | None:
        chosen = choose_up_to(folder, tokens)
        return None if chosen is None else chosen.marker.progress.step

    assert [step(tokens) for tokens in (9, 10, 29, 30)] == [None, 1, 2, 3]
    truncate_newest(folder)
    assert [step(tokens) for tokens in (29, 30)] == [2, 2]


@pytest.mark.usefixtures("alone")
def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    cases.save_steps(tmp_path, range(1, 2))
    state = Counted(5)
    message = "has the recipe fingerprint of one recipe, expected of another"
    with pytest.raises(RecipeError, match=message):
        load_newest(tmp_path, state, fingerprint="of another")
    assert state.values() == {5.0}
