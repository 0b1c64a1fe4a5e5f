"""A run goes back to a checkpoint, or to weights alone with an optimizer that knows nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__

from components.checkpoint.choice import check_alone, newest_whole
from components.checkpoint.metadata import Kind, RunProgress
from components.checkpoint.rewind import ASIDE, rewind
from components.errors import RecipeError
from tests.components.checkpoint.checkpoint_cases import Rank, start, state_of, train
from tests.components.checkpoint.saving_cases import load_checkpoint, make_saver
from tests.components.distributed.layout_cases import Layout, mesh_of_degrees
from tests.components.distributed.tensor_cases import Parts

PARTS, ALONE = Parts(), Layout()
BOTH: tuple[Kind, ...] = ("tokens", "weights")
ABOUT_ITSELF = ("ignore::FutureWarning", "ignore::UserWarning")
pytestmark = pytest.mark.filterwarnings(*ABOUT_ITSELF)  # torch's own, while it saves and loads


@pytest.fixture(scope="module", autouse=True)
def _world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    mesh_of_degrees.cache_clear()


def trained(folder: Path, *kinds: tuple[Kind, ...]) -> Rank:
    """Train a step before each save; the checkpoints have 10, 20, 30 tokens."""
    rank = start(PARTS, ALONE, seed=0)
    saver = make_saver(folder)
    for step, saved in enumerate(kinds, start=1):
        train(rank, range(step - 1, step))
        saver.save(rank.state, RunProgress(step, 10 * step), kinds=saved, held_out_loss=2.0)
    saver.wait()
    saver.close()
    return rank


def names(folder: Path) -> list[str]:
    named = (one.name.partition("-") for one in folder.glob("*s-*"))
    return sorted(f"{kind} {int(tokens)}" for kind, _, tokens in named)


@pytest.mark.parametrize(
    "kinds", [("tokens",), ("weights",), BOTH], ids=["full", "alone", "both"]
)
def test_a_fresh_optimizer_takes_the_steps_of_a_new_one(
    tmp_path: Path, kinds: tuple[Kind, ...]
) -> None:
    expected = trained(tmp_path, BOTH, kinds)
    optimizer = torch.optim.AdamW(expected.optimizer.param_groups[0]["params"], lr=0.01)
    expected = expected._replace(optimizer=optimizer)
    train(expected, range(2, 4))
    there = rewind(tmp_path, 20, fresh_optimizer=True)
    assert there.marker.progress == RunProgress(2, 20)
    assert newest_whole(tmp_path).checkpoint == there.checkpoint  # type: ignore[union-attr]
    found = start(PARTS, ALONE, seed=1)
    train(found, range(5))  # its moments are not those of a new one
    assert load_checkpoint(there.checkpoint, found.state) == RunProgress(2, 20)
    train(found, range(2, 4))
    ours, theirs = state_of(found), state_of(expected)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-12, atol=1e-15)


def test_later_checkpoints_are_set_aside_and_earlier_ones_stay(tmp_path: Path) -> None:
    trained(tmp_path, BOTH, BOTH, BOTH)
    there = rewind(tmp_path, 20, fresh_optimizer=False)
    assert there.left == (f"tokens-{30:015d}", f"weights-{30:015d}")
    assert names(tmp_path) == ["tokens 10", "tokens 20", "weights 10", "weights 20"]
    for one in there.left:
        assert check_alone(tmp_path / ASIDE / one).progress == RunProgress(3, 30)
    assert not check_alone(there.checkpoint).fresh_optimizer


@pytest.mark.parametrize("fresh", [False, True])
def test_the_same_again_changes_nothing(tmp_path: Path, fresh: bool) -> None:
    trained(tmp_path, BOTH, BOTH)
    first = rewind(tmp_path, 10, fresh_optimizer=fresh)
    again = rewind(tmp_path, 10, fresh_optimizer=fresh)
    assert (again.checkpoint, again.marker, again.left) == (first.checkpoint, first.marker, ())


def test_what_was_killed_in_between_is_done_by_the_same_again(tmp_path: Path) -> None:
    trained(tmp_path, ("weights",), BOTH)
    half = tmp_path / f".tokens-{10:015d}"
    half.mkdir()
    (half / "torn.safetensors").write_text("torn")
    there = rewind(tmp_path, 10, fresh_optimizer=True)
    assert check_alone(there.checkpoint) == there.marker


def test_without_links_the_files_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(1, "links are not allowed")

    trained(tmp_path, ("weights",))
    monkeypatch.setattr("os.link", refuse)
    there = rewind(tmp_path, 10, fresh_optimizer=True)
    assert check_alone(there.checkpoint) == there.marker


@pytest.mark.parametrize(
    ("tokens", "message"),
    [(20, "at_tokens: 20 has no checkpoint in .*\n  there are 10"), (7, "7 has no checkpoint")],
)
def test_weights_alone_need_a_fresh_optimizer(
    tmp_path: Path, tokens: int, message: str
) -> None:
    trained(tmp_path, BOTH, ("weights",))
    with pytest.raises(RecipeError, match=message):
        rewind(tmp_path, tokens, fresh_optimizer=False)
    assert names(tmp_path) == ["tokens 10", "weights 10", "weights 20"]


def test_where_nothing_is_saved_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="there is none"):
        rewind(tmp_path, 10, fresh_optimizer=True)
