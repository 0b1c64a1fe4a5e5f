"""Faults on request: which there are, whom they strike, and that they do so once."""

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn

from components.life import faults
from components.life.journal import read_lines
from components.life.rehearsal import Reach, Rehearsal
from components.spec.guard import BitFlip, Fault, Injection, Nan, Spike

KINDS = get_args(get_args(Injection)[0])


def reach(folder: Path) -> Reach:
    torch.manual_seed(0)
    batch = torch.arange(30).view(2, 3, 5)
    stages = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    return Reach(run_folder=folder, batch=batch, stages=list(stages))


def strike(folder: Path, fault: Fault, *, rank: int = 1, step: int = 7) -> Reach:
    reached = reach(folder)
    Rehearsal(faults=[fault], folder=folder, rank=rank).before_step(step, 60, reached)
    return reached


def test_every_fault_of_the_section_has_its_file_and_every_file_its_fault() -> None:
    (folder,) = faults.__path__
    files = {file.stem for file in Path(folder).glob("*.py")} - {"__init__"}
    named = {get_args(kind.model_fields["fault"].annotation)[0] for kind in KINDS}
    assert files == named


def test_nan_spoils_one_pass_of_the_first_stage(tmp_path: Path) -> None:
    reached = strike(tmp_path, Nan(fault="nan", rank=1, step=7))
    first, second = reached.stages
    inputs = torch.ones(2, 4)
    assert first(inputs).isnan().all()
    assert first(inputs).isfinite().all()
    assert second(inputs).isfinite().all()


def test_a_spike_is_one_rare_token_again_and_again(tmp_path: Path) -> None:
    reached = strike(tmp_path, Spike(fault="spike", rank=1, step=7))
    assert reached.batch.unique().tolist() == [29]
    assert reached.batch.shape == (2, 3, 5)


@pytest.mark.parametrize("bit", [0, 22, 30, 31])
def test_a_bit_flip_changes_one_bit_of_one_number(tmp_path: Path, bit: int) -> None:
    spared = reach(tmp_path).stages
    before = [weight for stage in spared for weight in stage.parameters()]
    reached = strike(tmp_path, BitFlip(fault="bit_flip", rank=1, step=7, bit=bit))
    after = [weight for stage in reached.stages for weight in stage.parameters()]
    changed = [
        (one.view(torch.int32) ^ other.view(torch.int32)) & 0xFFFFFFFF
        for one, other in zip(before, after, strict=True)
    ]
    differing = torch.cat([bits.flatten() for bits in changed])
    assert differing[differing != 0].tolist() in ([1 << bit], [-(1 << 31)])
    assert int((differing != 0).sum()) == 1


@pytest.mark.parametrize(("rank", "step"), [(0, 7), (1, 6), (1, 8)])
def test_other_ranks_and_other_steps_are_spared(tmp_path: Path, rank: int, step: int) -> None:
    strike(tmp_path, Spike(fault="spike", rank=1, step=7), rank=rank, step=step)
    assert list(tmp_path.iterdir()) == []


def test_a_fault_strikes_once_also_after_a_restart(tmp_path: Path) -> None:
    fault = Spike(fault="spike", rank=1, step=7)
    first, again = strike(tmp_path, fault), strike(tmp_path, fault)
    assert len(first.batch.unique()) == 1
    assert len(again.batch.unique()) == 30
    (event,) = read_lines(tmp_path / "journal.jsonl")
    expected: dict[str, Any] = {"fault": "spike", "rank": 1, "step": 7}
    assert (event["kind"], event["step"], event["evidence"]) == ("rehearsal", 6, expected)
