"""Weights on a GPU are in the checkpoint as they were when the save began."""

from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__

from components.checkpoint.metadata import RunProgress
from components.checkpoint.saving import HostBuffers, Read
from tests.components.checkpoint.saving_cases import make_saver

NUMBERS = 50_000_000  # 200 MB: the copy takes longer than the call that asks for it


class Weights:
    """One long tensor on a device."""

    def __init__(self, device: str) -> None:
        self.weight = torch.zeros(NUMBERS, device=device)

    def collect_tensors(self) -> dict[str, Tensor]:
        return {"model.weight": self.weight}

    def load_tensors(
        self, read: Read, saved: Collection[str], *, fresh_optimizer: bool
    ) -> None:
        read(self.collect_tensors())


@pytest.fixture
def world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.usefixtures("world_of_one")
def test_steps_after_the_call_do_not_reach_the_checkpoint(gpu: str, tmp_path: Path) -> None:
    state = Weights(gpu)
    saver = make_saver(tmp_path, stager=HostBuffers(torch.device(gpu)))
    for step in (1, 2, 3):
        state.weight.fill_(float(step))
        progress = RunProgress(step=step, tokens=step)
        saver.start_save(state, progress, kinds=["tokens"], held_out_loss=None)
        state.weight.fill_(-1.0)
    saver.wait_for_save()
    saver.close()
    for folder in tmp_path.iterdir():
        (file,) = folder.glob("*.safetensors")
        step = int(folder.name.partition("-")[2])
        assert bool((load_file(file)["model.weight"] == step).all())
