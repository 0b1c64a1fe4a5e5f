"""Saves that are killed, and what a run would go on from then: ``python -m ... ROUNDS``.

Each round kills one of two ranks, or both, with SIGKILL at a random moment of a row of saves.
What is loaded after that must be one whole checkpoint: every number of it is that of its step.
"""

import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

RANKS, LENGTH = 2, 150_000  # numbers a row of 6: two files of some megabytes
FILES = (1, 2)
LONGEST_SECONDS = 0.4  # from the first save to the kill: some saves
END_SECONDS = 20.0
VICTIMS = ((0,), (1,), (0, 1))


class Left(NamedTuple):
    """What a kill left: the step to go on from (0 if none), how many saves were whole."""

    step: int
    values: set[float]
    damaged: list[str]
    unfinished: int

    @property
    def is_whole(self) -> bool:
        return not self.damaged and self.values == ({float(self.step)} if self.step else set())


def save_until_killed(rank: int, folder: Path, files: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed import FileStore  # type: ignore[attr-defined]  # not in its __all__

    from tests.components.checkpoint.numbers import Counted
    from tests.components.checkpoint.saver_cases import begin, saving

    torch.set_num_threads(1)
    store = FileStore(str(folder.with_name("store")), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    state = Counted(0, LENGTH)
    lost = contextlib.suppress(RuntimeError)  # whose peer is killed is to end by that
    with lost, saving(folder, files=files) as saver:
        for step in range(1, 100_000):
            state.become(step)
            begin(saver, state, step)
            (folder.with_name("begun")).touch()


def load_what_is_left(folder: Path) -> Left:
    """Load as one process does; it has half the numbers of two ranks."""
    from safetensors.torch import load_file

    from components.checkpoint.choice import newest_whole

    unfinished = len([*folder.glob(".tokens-*")])
    chosen = newest_whole(folder)
    if chosen is None:
        return Left(0, set(), [], unfinished)
    tensors = [
        tensor
        for file in chosen.checkpoint.glob("*.safetensors")
        for tensor in load_file(file).values()
    ]
    values = {float(one) for tensor in tensors for one in tensor.reshape(-1).unique()}
    step = chosen.marker.progress.step
    return Left(step, values, [str(one) for one in chosen.damaged], unfinished)


def play(folder: Path, victims: tuple[int, ...], files: int, seconds: float) -> Left:
    """Kill some of the ranks so long after their first save began; the others end by that."""
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(parents=True)
    context = get_context("forkserver")  # torch is imported once for all rounds
    context.set_forkserver_preload(["torch", "tests.components.checkpoint.saver_cases"])
    ranks = [
        context.Process(target=save_until_killed, args=(rank, checkpoints, files))
        for rank in range(RANKS)
    ]
    for rank in ranks:
        rank.start()
    while not (folder / "begun").exists():
        time.sleep(0.002)
    time.sleep(seconds)
    for victim in victims:
        ranks[victim].kill()
    for rank in ranks:
        rank.join(END_SECONDS)
        assert not rank.is_alive(), "a rank outlived its peer"
    return load_what_is_left(checkpoints)


def rounds(folder: Path, number: int, seed: int) -> Iterator[tuple[tuple[int, ...], Left]]:
    """Play rounds, every choice of victims in turn; give victims and what was left."""
    draw = random.Random(seed)
    for turn in range(number):
        victims, seconds = VICTIMS[turn % len(VICTIMS)], draw.uniform(0, LONGEST_SECONDS)
        yield victims, play(folder / str(turn), victims, FILES[turn % len(FILES)], seconds)


def main() -> int:
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="killed-") as name:
        for victims, left in rounds(Path(name), int(sys.argv[1]), seed=1):
            good = left.is_whole
            wrong += not good
            sys.stdout.write(
                f"rank {victims} killed: goes on from step {left.step}, "
                f"{left.unfinished} unfinished, {'whole' if good else 'WRONG'}\n"
            )
    return int(wrong > 0)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.exit(main())
