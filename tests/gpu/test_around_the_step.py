"""What is done around a step on a GPU: pinned batches, memory in growing segments."""

import os
import subprocess
import sys

import pytest
import torch

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.data.manifest import Manifest
from components.parity.prover import draw_data
from components.train.batches import RankBatches
from components.train.prefetch import Prefetcher
from components.train.ranks import ALLOCATOR, OLDER_ALLOCATORS

pytestmark = pytest.mark.gpu

# As `launch` does in a process that trains by itself: torch is there before the variable.
SEGMENTS = """
import os, torch
from components.train.ranks import allocator_variables
os.environ |= allocator_variables("cuda", os.environ)
kept = torch.empty(1 << 26, device="cuda")
print({one["is_expandable"] for one in torch.cuda.memory_snapshot()})
"""


def test_batches_lie_in_pinned_memory_and_arrive_as_they_were_read(gpu, tmp_path):
    recipe = compose_recipe(read_point(["recipe=teuken7b", "scale=parity"]))
    draw_data(recipe, tmp_path / "data")
    manifest = Manifest.from_folder(tmp_path / "data")
    batches = RankBatches(recipe=recipe, folder=tmp_path / "data", manifest=manifest, rank=0)
    taken: list[int] = []
    device = torch.device(gpu, 0)
    for batch in Prefetcher(batches, lambda: len(taken), steps=range(8), device=device):
        assert batch.tokens.is_pinned()
        expected = batches.read_samples(batches.list_sample_numbers(len(taken)), pinned=False)
        assert torch.equal(batch.tokens.to(device, non_blocking=True).cpu(), expected)
        taken.append(len(taken))
    assert len(taken) == 8


@pytest.mark.parametrize("own", [None, "backend:native"])
def test_memory_grows_in_segments_unless_the_user_has_said_otherwise(gpu, own):
    if gpu != "cuda":
        pytest.skip("only CUDA has these allocator settings")
    seen = {k: v for k, v in os.environ.items() if k not in {ALLOCATOR, *OLDER_ALLOCATORS}}
    seen |= {} if own is None else {ALLOCATOR: own}
    said = subprocess.check_output([sys.executable, "-c", SEGMENTS], env=seen, text=True)
    assert said.strip() == str({own is None})
