"""How long do steps wait for a checkpoint, and how close is a save to the speed of the disk?

One process saves weights and two moments in float32. A round has a synchronous save, an
asynchronous save, torch's safetensors writer, `dd` of the same bytes with the same fsync, and
hashing alone. Ratios are taken within a round; the result is their median with its interval.
The process is idle between rounds. Exit status 1 if a median misses its target. For the time
from a kill to the next step, see `python -m benchmarks.chaos.chaos kill`.

    python -m benchmarks.training.checkpoints [FOLDER]
"""

import hashlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in its __all__
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import save

from benchmarks.entry import run_script
from benchmarks.machine import medians_of
from benchmarks.ratios import Ratio, paired_ratio, save_benchmark, to_interval
from components.checkpoint.metadata import RunProgress
from components.checkpoint.retention import Policy
from components.checkpoint.saving import FinishedCheckpoint, HostBuffers, Read, Saver
from components.distributed.node_tree import NodeTree

# Stall over a synchronous save; throughput over dd's and over torch's writer's.
MOST_STALL, LEAST_OF_DD, LEAST_OF_TORCH = 0.15, 0.70, 1.0
ROUNDS, WARMUP_ROUNDS = 7, 1
HOST = torch.device("cpu")
LAYERS, DIM = 16, 1_024  # 4 matrices per layer and 3 numbers per weight: 805 MB


class Weights:
    """The weights of a model and the moments of an optimizer."""

    def __init__(self, layers: int, dim: int, device: torch.device = HOST) -> None:
        torch.manual_seed(0)
        self._tensors = {
            f"{kind}layers.{layer}.{name}": torch.randn(dim, dim, device=device)
            for kind in ("model.", "optimizer.state.exp_avg.", "optimizer.state.exp_avg_sq.")
            for layer in range(layers)
            for name in ("query", "key", "value", "output")
        }

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def collect_tensors(self) -> dict[str, Tensor]:
        return self._tensors

    def load_tensors(
        self, read: Read, saved: Collection[str], *, fresh_optimizer: bool
    ) -> None:
        read(self._tensors)


def make_saver(folder: Path, *, asynchronous: bool, device: torch.device = HOST) -> Saver:
    """Return a saver that retains one checkpoint."""
    assert dist.group.WORLD is not None
    return Saver(
        folder=folder,
        fingerprint="",
        group=NodeTree(dist.group.WORLD),
        stager=HostBuffers(device) if asynchronous else None,
        policy=Policy(last=1, every_tokens="none", best=0),
        files=1,
        retry_seconds=0.0,
        copy_to=None,
    )


def save_once(saver: Saver, state: Weights, tokens: int) -> FinishedCheckpoint:
    """Save and wait for the save, even if it is asynchronous."""
    earlier = saver.start_save(
        state, RunProgress(step=tokens, tokens=tokens), kinds=["tokens"], held_out_loss=None
    )
    (finished,) = [*earlier, *saver.wait_for_save()]
    return finished


def time_task(task: Callable[[], object]) -> float:
    """Time a task after all pending writes of the disk."""
    subprocess.run(["sync"], check=True)
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def save_by_torch(folder: Path, state: Weights) -> None:
    """Save with torch's writer, which also syncs but computes no hashes."""
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    save(state.collect_tensors(), storage_writer=writer)


def measure_rounds(folder: Path, state: Weights, rounds: int) -> list[dict[str, float]]:
    """Return the seconds of the parts of each round; each part's files are removed."""
    savers = {}
    for name in ("synchronous", "asynchronous"):
        (folder / name).mkdir()
        savers[name] = make_saver(folder / name, asynchronous=name == "asynchronous")
    measured = []
    for number in range(1, rounds + 1):
        times = {}
        for name, saver in savers.items():
            subprocess.run(["sync"], check=True)
            finished = save_once(saver, state, number)
            times[name] = finished.seconds
        times["asynchronous_stall"] = finished.stall_seconds
        (file,) = (folder / "synchronous").glob("tokens-*/*.safetensors")
        with file.open("rb") as stream:
            for digest in ("sha256", "blake2b"):
                stream.seek(0)
                times[digest] = time_task(partial(hashlib.file_digest, stream, digest))
        dd = ["dd", f"if={file}", f"of={folder / 'dd'}", "bs=16M", "conv=fsync", "status=none"]
        times["dd"] = time_task(partial(subprocess.run, dd, check=True))
        (folder / "dd").unlink()
        times["torch"] = time_task(lambda: save_by_torch(folder / "torch", state))
        shutil.rmtree(folder / "torch")
        measured.append(times)
    for saver in savers.values():
        saver.close()
    return measured


def times_by_name(measured: list[dict[str, float]]) -> dict[str, list[float]]:
    """Return the seconds of each part in all rounds."""
    return {name: [times[name] for times in measured] for name in measured[0]}


def summarize(measured: list[dict[str, float]], size: int) -> dict[str, Any]:
    """Return medians over the rounds, and rates."""
    medians = medians_of(times_by_name(measured))
    return {
        "bytes": size,
        "rounds": len(measured),
        "median_seconds": medians,
        "gigabytes_per_second": {name: size / value / 1e9 for name, value in medians.items()},
        "times": measured,
    }


def ratios_of(measured: list[dict[str, float]]) -> list[Ratio]:
    """Compare measurements of the same round."""
    times = times_by_name(measured)
    stall, dd, torch_writer = (
        to_interval(paired_ratio(times[name], times["synchronous"]))
        for name in ("asynchronous_stall", "dd", "torch")
    )
    return [
        Ratio("wait of the steps", "a synchronous save", at_most=MOST_STALL, **stall),
        Ratio("throughput", "dd conv=fsync", at_least=LEAST_OF_DD, **dd),
        Ratio(
            "throughput", "torch's safetensors writer", at_least=LEAST_OF_TORCH, **torch_writer
        ),
    ]


def main(words: Sequence[str]) -> int:
    """Measure in a folder, which selects the disk, and save the result."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    parent = words[0] if words else None
    state = Weights(LAYERS, DIM)
    with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=parent) as name:
        measured = measure_rounds(Path(name), state, WARMUP_ROUNDS + ROUNDS)[WARMUP_ROUNDS:]
    dist.destroy_process_group()
    shape = {"bytes": state.bytes, "layers": LAYERS, "dim": DIM, "rounds": ROUNDS}
    figures = summarize(measured, state.bytes)
    return save_benchmark("checkpoints", shape, figures, ratios_of(measured))


if __name__ == "__main__":
    run_script(main, max_words=1)
