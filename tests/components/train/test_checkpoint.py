"""A checkpoint is complete or not there, holds what was saved, and says when it was changed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__

from components.errors import RecipeError
from components.train.checkpoint import (
    MARKER,
    Progress,
    load_checkpoint,
    newest_checkpoint,
    prune_checkpoints,
    read_progress,
    save_checkpoint,
)


@pytest.fixture(autouse=True)
def _world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model_and_optimizer(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)


def take_steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int
) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        model(inputs).square().sum().backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # torch's own
def test_going_on_from_a_checkpoint_gives_the_same_bits(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer(0)
    take_steps(model, optimizer, 0, 3)
    saved = save_checkpoint(tmp_path, model, optimizer, Progress(step=3, tokens=30))
    take_steps(model, optimizer, 3, 6)
    other, other_optimizer = model_and_optimizer(1)
    assert load_checkpoint(saved, other, other_optimizer) == Progress(step=3, tokens=30)
    take_steps(other, other_optimizer, 3, 6)
    for first, second in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # torch's own
def test_what_is_written_holds_no_pickle(tmp_path: Path) -> None:
    saved = save_checkpoint(tmp_path, *model_and_optimizer(0), Progress(step=0, tokens=0))
    assert {file.suffix for file in saved.iterdir()} == {".safetensors", ".json"}


def fake(folder: Path, tokens: int, *, complete: bool = True) -> Path:
    target = folder / f"tokens-{tokens:015d}"
    target.mkdir()
    (target / "a.safetensors").write_bytes(b"abc")
    if complete:
        sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        marker = {"step": tokens // 10, "tokens": tokens, "files": {"a.safetensors": sha256}}
        (target / MARKER).write_text(json.dumps(marker))
    return target


def test_a_checkpoint_without_its_marker_never_counts(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    older = fake(tmp_path, 90)
    fake(tmp_path, 100, complete=False)
    assert newest_checkpoint(tmp_path) == older


def test_the_newest_is_the_one_with_most_tokens(tmp_path: Path) -> None:
    newest = fake(tmp_path, 1_000_000)
    fake(tmp_path, 20)
    assert newest_checkpoint(tmp_path) == newest


def test_only_the_last_ones_are_kept(tmp_path: Path) -> None:
    for tokens in (10, 20, 30, 40):
        fake(tmp_path, tokens)
    prune_checkpoints(tmp_path, keep=2)
    assert sorted(int(path.name[7:]) for path in tmp_path.iterdir()) == [30, 40]


def test_a_changed_file_is_named(tmp_path: Path) -> None:
    target = fake(tmp_path, 10)
    assert read_progress(target) == Progress(step=1, tokens=10)
    (target / "a.safetensors").write_bytes(b"abd")
    with pytest.raises(RecipeError, match=r"a\.safetensors: was changed after it was written"):
        read_progress(target)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    target = fake(tmp_path, 10)
    (target / "a.safetensors").unlink()
    with pytest.raises(RecipeError, match=r"a\.safetensors: is missing"):
        read_progress(target)
