"""A run goes back to a checkpoint, or to weights alone with an optimizer that knows nothing."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.checkpoint import loading
from components.checkpoint.choice import check_alone, newest_whole
from components.checkpoint.metadata import CheckpointKind, Marker, RunProgress
from components.checkpoint.start import ASIDE, find_earlier, put_start
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.run.folder import RunFolder
from tests.components.checkpoint.checkpoint_cases import Rank, start, state_of, train
from tests.components.checkpoint.saving_cases import make_saver
from tests.components.distributed.layout_cases import Layout, mesh_of_degrees
from tests.components.distributed.tensor_cases import Parts

PARTS, ALONE = Parts(), Layout()
BOTH: tuple[CheckpointKind, ...] = ("tokens", "weights")
ABOUT_ITSELF = ("ignore::FutureWarning", "ignore::UserWarning")
pytestmark = pytest.mark.filterwarnings(*ABOUT_ITSELF)  # torch's own, while it saves and loads


@pytest.fixture(scope="module", autouse=True)
def _world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    mesh_of_degrees.cache_clear()


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


class Rewound(NamedTuple):
    checkpoint: Path
    marker: Marker
    left: tuple[str, ...]


@cache
def recipe() -> Recipe:
    return compose_recipe(read_point(["recipe=teuken7b"]))


def rewind(folder: Path, tokens: int, *, fresh_optimizer: bool) -> Rewound:
    run = RunFolder(folder.parent)
    run.write_recipe(recipe())
    found = find_earlier(run, tokens, fresh_optimizer=fresh_optimizer)
    left = put_start(run, found)
    checkpoint = run.checkpoints / found.marker.folder_name
    return Rewound(checkpoint, check_alone(checkpoint), tuple(left))


def trained(folder: Path, *kinds: tuple[CheckpointKind, ...]) -> Rank:
    """Train a step before each save; the checkpoints have 10, 20, 30 tokens."""
    rank = start(PARTS, ALONE, seed=0)
    saver = make_saver(folder, fingerprint=compute_fingerprint(recipe()))
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
    "kinds", [("tokens",), ("weights",), BOTH], ids=["full", "alone", "both"]
)
def test_a_fresh_optimizer_takes_the_steps_of_a_new_one(
    checkpoints: Path, kinds: tuple[CheckpointKind, ...]
) -> None:
    expected = trained(checkpoints, BOTH, kinds)
    optimizer = torch.optim.AdamW(expected.optimizer.param_groups[0]["params"], lr=0.01)
    expected = expected._replace(optimizer=optimizer)
    train(expected, range(2, 4))
    there = rewind(checkpoints, 20, fresh_optimizer=True)
    assert there.marker.progress == RunProgress(2, 20)
    assert newest_whole(checkpoints).checkpoint == there.checkpoint  # type: ignore[union-attr]  # not None
    found = start(PARTS, ALONE, seed=1)
    train(found, range(5))  # its moments are not those of a new one
    fingerprint = compute_fingerprint(recipe())
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
    trained(checkpoints, BOTH, BOTH, BOTH)
    there = rewind(checkpoints, 20, fresh_optimizer=False)
    assert there.left == (f"tokens-{30:015d}", f"weights-{30:015d}")
    assert names(checkpoints) == ["tokens 10", "tokens 20", "weights 10", "weights 20"]
    for one in there.left:
        assert check_alone(checkpoints / ASIDE / one).progress == RunProgress(3, 30)
    assert not check_alone(there.checkpoint).fresh_optimizer


@pytest.mark.parametrize("fresh", [False, True])
def test_the_same_again_changes_nothing(checkpoints: Path, fresh: bool) -> None:
    trained(checkpoints, BOTH, BOTH)
    first = rewind(checkpoints, 10, fresh_optimizer=fresh)
    again = rewind(checkpoints, 10, fresh_optimizer=fresh)
    assert (again.checkpoint, again.marker, again.left) == (first.checkpoint, first.marker, ())


def test_what_was_killed_in_between_is_done_by_the_same_again(checkpoints: Path) -> None:
    trained(checkpoints, ("weights",), BOTH)
    half = checkpoints / f".tokens-{10:015d}"
    half.mkdir()
    (half / "torn.safetensors").write_text("torn")
    there = rewind(checkpoints, 10, fresh_optimizer=True)
    assert check_alone(there.checkpoint) == there.marker


def test_without_links_the_files_are_copied(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(1, "links are not allowed")

    trained(checkpoints, ("weights",))
    monkeypatch.setattr("os.link", refuse)
    there = rewind(checkpoints, 10, fresh_optimizer=True)
    assert check_alone(there.checkpoint) == there.marker


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (20, "at_tokens: no checkpoint at 20 tokens in .*\n  nearest checkpoints: 10"),
        (7, "no checkpoint at 7 tokens"),
    ],
)
def test_weights_alone_need_a_fresh_optimizer(
    checkpoints: Path, tokens: int, message: str
) -> None:
    trained(checkpoints, BOTH, ("weights",))
    with pytest.raises(RecipeError, match=message):
        rewind(checkpoints, tokens, fresh_optimizer=False)
    assert names(checkpoints) == ["tokens 10", "weights 10", "weights 20"]


def test_where_nothing_is_saved_that_is_said(checkpoints: Path) -> None:
    with pytest.raises(RecipeError, match="the folder has no checkpoint"):
        rewind(checkpoints, 10, fresh_optimizer=True)
