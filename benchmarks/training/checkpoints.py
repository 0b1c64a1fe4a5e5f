"""How long do steps stand still for a checkpoint, and is it written as fast as a disk can?

One process saves weights and two moments, in float32. A round is, in turn: a synchronous save,
an asynchronous one, torch's own safetensors writer, `dd` of as many bytes with the same fsync,
and hashing alone. What one round took is compared, and of the rounds' ratios the median is told
with its interval. Between rounds the process does nothing. Exit status 1 if a median does not
hold. How soon after a kill a step is taken is told by `python -m benchmarks.chaos.chaos kill`.

    python -m benchmarks.training.checkpoints [FOLDER]
"""

import hashlib
import shutil
import statistics
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

from benchmarks.entry import enter
from benchmarks.kept import circumstances
from benchmarks.ratios import Ratio, interval, keep_result, paired_ratio
from components.checkpoint.metadata import RunProgress
from components.checkpoint.retention import Policy
from components.checkpoint.saving import FinishedCheckpoint, HostBuffers, Read, Saver
from components.distributed.node_tree import NodeTree

# A stall by a synchronous save; throughput by dd's and by that of torch's writer.
MOST_STALL, LEAST_OF_DD, LEAST_OF_TORCH = 0.15, 0.70, 1.0
ROUNDS, WARMUP_ROUNDS = 7, 1
HOST = torch.device("cpu")
LAYERS, DIM = 16, 1_024  # 4 matrices a layer and 3 numbers a weight: 805 MB


class Weights:
    """A model's weights and an optimizer's moments, which change between two saves."""

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

    def tensors(self) -> dict[str, Tensor]:
        return self._tensors

    def fill(self, read: Read, saved: Collection[str], *, fresh_optimizer: bool) -> None:
        read(self._tensors)


def make_saver(folder: Path, *, asynchronous: bool, device: torch.device = HOST) -> Saver:
    """Make a saver that keeps one checkpoint."""
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
    """Save, and wait for it whether or not the steps would."""
    begun = saver.save(
        state, RunProgress(step=tokens, tokens=tokens), kinds=["tokens"], held_out_loss=None
    )
    (finished,) = [*begun, *saver.wait()]
    return finished


def seconds(task: Callable[[], object]) -> float:
    """Time a task from a disk that has nothing left to write."""
    subprocess.run(["sync"], check=True)
    began = time.perf_counter()
    task()
    return time.perf_counter() - began


def copy_by_dd(source: Path, target: Path) -> None:
    """Copy a file that the system has in memory, down to the disk."""
    command = ["dd", f"if={source}", f"of={target}", "bs=16M", "conv=fsync", "status=none"]
    subprocess.run(command, check=True)


def save_by_torch(folder: Path, state: Weights) -> None:
    """Save by torch's own writer, which syncs too and hashes nothing."""
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    save(state.tensors(), storage_writer=writer)


def measure(folder: Path, state: Weights, rounds: int) -> list[dict[str, float]]:
    """Return the seconds of each round's parts; every part's files are removed after it."""
    savers = {}
    for name in ("synchronous", "asynchronous"):
        (folder / name).mkdir()
        savers[name] = make_saver(folder / name, asynchronous=name == "asynchronous")
    measured = []
    for turn in range(1, rounds + 1):
        times = {}
        for name, saver in savers.items():
            subprocess.run(["sync"], check=True)
            finished = save_once(saver, state, turn)
            times[name] = finished.seconds
        times["asynchronous_stall"] = finished.stall_seconds
        (saved,) = (folder / "synchronous").glob("tokens-*/*.safetensors")
        with saved.open("rb") as stream:
            for digest in ("sha256", "blake2b"):
                stream.seek(0)
                times[digest] = seconds(partial(hashlib.file_digest, stream, digest))
        times["dd"] = seconds(partial(copy_by_dd, saved, folder / "dd"))
        (folder / "dd").unlink()
        times["torch"] = seconds(lambda: save_by_torch(folder / "torch", state))
        shutil.rmtree(folder / "torch")
        measured.append(times)
    for saver in savers.values():
        saver.close()
    return measured


def summarize(measured: list[dict[str, float]], size: int) -> dict[str, Any]:
    """Take the medians over the rounds."""
    times = {name: [one[name] for one in measured] for name in measured[0]}
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "bytes": size,
        "rounds": len(measured),
        "median_seconds": medians,
        "gigabytes_per_second": {name: size / value / 1e9 for name, value in medians.items()},
        "times": measured,
    }


def ratios_of(measured: list[dict[str, float]]) -> list[Ratio]:
    """Compare, round by round, what was measured in the same one."""
    times = {name: [one[name] for one in measured] for name in measured[0]}
    ours = times["synchronous"]
    return [
        Ratio(
            "wait of the steps",
            "a synchronous save",
            at_most=MOST_STALL,
            **interval(paired_ratio(times["asynchronous_stall"], ours)),
        ),
        Ratio(
            "throughput",
            "dd conv=fsync",
            at_least=LEAST_OF_DD,
            **interval(paired_ratio(times["dd"], ours)),
        ),
        Ratio(
            "throughput",
            "torch's safetensors writer",
            at_least=LEAST_OF_TORCH,
            **interval(paired_ratio(times["torch"], ours)),
        ),
    ]


def main(words: Sequence[str]) -> int:
    """Measure in a folder of the disk that is meant, and keep the result."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    where = words[0] if words else None
    state = Weights(LAYERS, DIM)
    with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=where) as name:
        measured = measure(Path(name), state, WARMUP_ROUNDS + ROUNDS)[WARMUP_ROUNDS:]
    dist.destroy_process_group()
    result = summarize(measured, state.bytes)
    result |= circumstances(
        peer="dd with conv=fsync, torch's safetensors writer, a synchronous save of ours",
        convention="wall clock of one process, float32; medians of paired ratios of the same "
        "round, with 95 % intervals of the order statistics; a rate is bytes by seconds, with "
        "planning, hashing and marking in ours",
        shape={"bytes": state.bytes, "layers": LAYERS, "dim": DIM, "rounds": ROUNDS},
        packages=("torch",),
    )
    return keep_result("checkpoints", result, ratios_of(measured))


if __name__ == "__main__":
    enter(main, most=1)
