"""Faults on request: which there are, whom they strike, and that they do so once."""

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

from components.checkpoint.metadata import MARKER, RunProgress
from components.config.schema import monitoring
from components.errors import RecipeError
from components.fault_tolerance import faults
from components.fault_tolerance.faults import FaultInjector, Reach
from components.run.history import read_lines

KINDS = get_args(get_args(monitoring.Injection)[0])


def reach(folder: Path) -> Reach:
    torch.manual_seed(0)
    batch = torch.arange(30).view(2, 3, 5)
    stages = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    return Reach(checkpoints=folder, batch=batch, stages=list(stages))


def strike(
    folder: Path,
    fault: monitoring.Fault,
    *,
    rank: int = 1,
    step: int = 7,
    checkpoints: Path | None = None,
) -> Reach:
    reached = reach(checkpoints or folder)
    injector = FaultInjector(faults=[fault], folder=folder, rank=rank)
    injector.before_step(RunProgress(step=step - 1, tokens=60), reached)
    return reached


def test_every_fault_has_a_function_of_its_name() -> None:
    named = {name for kind in KINDS for name in get_args(kind.model_fields["fault"].annotation)}
    assert all(callable(getattr(faults, name)) for name in named)


def test_nan_is_injected_in_one_forward_pass(tmp_path: Path) -> None:
    reached = strike(tmp_path, monitoring.PlainFault(fault="nan", rank=1, step=7))
    first, second = reached.stages
    inputs = torch.ones(2, 4)
    assert first(inputs).isnan().all()
    assert first(inputs).isfinite().all()
    assert second(inputs).isfinite().all()


def test_a_spike_repeats_one_rare_token(tmp_path: Path) -> None:
    reached = strike(tmp_path, monitoring.PlainFault(fault="spike", rank=1, step=7))
    assert reached.batch.unique().tolist() == [29]
    assert reached.batch.shape == (2, 3, 5)


@pytest.mark.parametrize("bit", [0, 22, 30, 31])
def test_a_bit_flip_changes_one_bit_of_one_number(tmp_path: Path, bit: int) -> None:
    spared = reach(tmp_path).stages
    before = [weight for stage in spared for weight in stage.parameters()]
    reached = strike(tmp_path, monitoring.BitFlip(fault="bit_flip", rank=1, step=7, bit=bit))
    after = [weight for stage in reached.stages for weight in stage.parameters()]
    changed = [
        (one.view(torch.int32) ^ other.view(torch.int32)) & 0xFFFFFFFF
        for one, other in zip(before, after, strict=True)
    ]
    differing = torch.cat([bits.flatten() for bits in changed])
    assert differing[differing != 0].tolist() in ([1 << bit], [-(1 << 31)])
    assert int((differing != 0).sum()) == 1


def checkpoint(folder: Path, tokens: int) -> Path:
    grown = folder / f"tokens-{tokens:015d}"
    grown.mkdir()
    (grown / MARKER).touch()
    (grown / "shard-00001-of-00001.safetensors").write_bytes(b"12345678")
    return grown


def sizes(folder: Path) -> list[int]:
    return [file.stat().st_size for file in sorted(folder.rglob("*.safetensors"))]


def test_only_the_newest_checkpoint_is_truncated(tmp_path: Path) -> None:
    fault = monitoring.PlainFault(fault="truncated_checkpoint", rank=1, step=7)
    run, again = tmp_path / "run", tmp_path / "again"
    for folder in (run, again):
        folder.mkdir()
    with pytest.raises(RecipeError, match="has no checkpoint to damage"):
        strike(run, fault)
    checkpoint(again, 10)
    checkpoint(again, 20)
    strike(again, fault)
    assert sizes(again) == [8, 4]


def test_the_folder_of_checkpoints_is_restored(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    checkpoint(folder, 10)
    fault = monitoring.FilesGone(fault="files_gone", rank=1, step=7, seconds=0.2)
    strike(tmp_path, fault, checkpoints=folder)
    assert not folder.exists()
    wait_until(folder.exists)
    assert sizes(folder) == [8]


def test_a_full_disk_accepts_small_files_and_is_freed_later(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    strike(
        tmp_path,
        monitoring.FullDisk(fault="full_disk", rank=1, step=7, seconds=0.2, free_bytes=1_000),
    )
    file = tmp_path / "file"
    file.write_bytes(bytes(1_000))
    with pytest.raises(OSError, match="File too large"):
        file.write_bytes(bytes(1_001))
    wait_until(lambda: resource.getrlimit(resource.RLIMIT_FSIZE) == before)
    file.write_bytes(bytes(1_001))


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(("rank", "step"), [(0, 7), (1, 6), (1, 8)])
def test_other_ranks_and_steps_get_no_fault(tmp_path: Path, rank: int, step: int) -> None:
    strike(tmp_path, monitoring.PlainFault(fault="spike", rank=1, step=7), rank=rank, step=step)
    assert list(tmp_path.iterdir()) == []


def test_a_fault_is_injected_once_across_restarts(tmp_path: Path) -> None:
    fault = monitoring.PlainFault(fault="spike", rank=1, step=7)
    first, again = strike(tmp_path, fault), strike(tmp_path, fault)
    assert len(first.batch.unique()) == 1
    assert len(again.batch.unique()) == 30
    (event,) = read_lines(tmp_path / "events.jsonl")
    expected: dict[str, Any] = {"fault": "spike", "rank": 1, "step": 7}
    assert (event["kind"], event["step"], event["evidence"]) == ("rehearsal", 6, expected)
