"""Four ranks that pose as two nodes of two, each with a folder of its own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]  # not in its __all__

from components.checkpoint.local_copies import LocalCopies
from components.checkpoint.local_files import write_state
from components.checkpoint.metadata import RunProgress
from components.checkpoint.saving import DealtState
from components.distributed.node_tree import NodeTree, make_node_tree
from components.distributed.weight_shards import get_local_part
from tests.components.checkpoint.checkpoint_cases import Rank, start, state_of
from tests.components.checkpoint.checkpoint_cases import State as Named
from tests.components.checkpoint.numbers import Counted
from tests.components.distributed.layout_cases import Layout, batch_of
from tests.components.distributed.tensor_cases import Parts

PER_NODE, TIMEOUT = 2, timedelta(seconds=60)
_trees: dict[int, NodeTree] = {}


class Went(NamedTuple):
    """Where a rank went on (None: it found nothing), its losses from there, its state then."""

    progress: RunProgress | None
    losses: list[list[float]]
    state: Named


def node_folder(folder: Path, rank: int, per_node: int = PER_NODE) -> Path:
    one = folder / f"node-{rank // per_node}"
    one.mkdir(parents=True, exist_ok=True)
    return one


@contextmanager
def copies_of(
    state: DealtState, folder: Path, *, run: str = "one run", per_node: int = PER_NODE
) -> Iterator[LocalCopies]:
    if per_node not in _trees:
        _trees[per_node] = make_node_tree(ranks_per_node=per_node, timeout=TIMEOUT)
    copies = LocalCopies(
        folder=node_folder(folder, dist.get_rank(), per_node),
        run=run,
        state=state,
        group=_trees[per_node],
        ranks_per_node=per_node,
        timeout=TIMEOUT,
        pinned=False,
    )
    try:
        yield copies
    finally:
        copies.close()


def train(rank: Rank, steps: range) -> list[list[float]]:
    losses = []
    for step in steps:
        losses.append(rank.sharded.backward(batch_of(step, rank.sharded.mesh.data_rank)))
        rank.optimizer.step()
        rank.sharded.parallel.all_gather_updated()
    return losses


def progress_after(step: int) -> RunProgress:
    return RunProgress(step, 10 * step, guard={"skipped": [[step, 1]]})


def keep(parts: Parts, layout: Layout, folder: Path, steps: int, end: int) -> Went:
    rank = start(parts, layout, seed=0)
    with copies_of(rank.state, folder) as copies:
        for step in range(steps):
            train(rank, range(step, step + 1))
            assert copies.start_save(progress_after(step + 1)) is None
        losses = train(rank, range(steps, end))  # while the last one is written
        assert copies.wait_for_write() is None
    return Went(progress_after(steps), losses, state_of(rank))


def go_on(
    parts: Parts, layout: Layout, folder: Path, end: int, after_tokens: int, run: str
) -> Went:
    rank = start(parts, layout, seed=1)
    with copies_of(rank.state, folder, run=run) as copies:
        if (found := copies.find_newest(after_tokens=after_tokens)) is None:
            return Went(None, [], {})
        progress = copies.load_generation(found)
        losses = train(rank, range(progress.step, end))
        # What was restored from elsewhere is a copy of this node's again.
        assert copies.start_save(progress_after(end)) is None
        assert copies.wait_for_write() is None
        assert copies.find_newest(after_tokens=10 * end - 1) is not None
    return Went(progress, losses, state_of(rank))


def kept_bytes(parts: Parts, layout: Layout, folder: Path) -> tuple[int, int]:
    rank = start(parts, layout, seed=0)
    train(rank, range(1))
    held = sum(get_local_part(one).nbytes for one in rank.state.collect_tensors().values())
    with copies_of(rank.state, folder) as copies:
        return len(copies._own), held


def keep_where_one_is_full(folder: Path, full: int) -> list[str | None]:
    state, said = Counted(1), list[str | None]()

    def write(*given: object) -> Path:
        raise OSError(28, os.strerror(28))

    with copies_of(state, folder) as copies:
        copies.start_save(progress_after(1))
        said.append(copies.wait_for_write())
        state.become(2)
        given = write if dist.get_rank() == full else write_state
        with patch("components.checkpoint.local_copies.write_state", given):
            copies.start_save(progress_after(2))
            said.append(copies.wait_for_write())
    return said


def keep_step(folder: Path, step: int) -> None:
    with copies_of(Counted(step), folder) as copies:
        copies.start_save(progress_after(step))
        assert copies.wait_for_write() is None


def keep_until_killed(rank: int, folder: Path, length: int) -> None:
    """Be a rank that keeps local checkpoints as fast as it can, and notes which are kept."""
    torch.set_num_threads(1)
    store = FileStore(str(folder / "store"), 2 * PER_NODE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2 * PER_NODE)
    state = Counted(0, length)
    lost = suppress(RuntimeError)  # whose peer is killed is to end by that
    with lost, copies_of(state, folder) as copies:
        for step in range(1, 100_000):
            state.become(step)
            copies.start_save(progress_after(step))
            state.become(-step)
            assert copies.wait_for_write() is None
            (folder / f"kept-{rank}").write_text(str(step))


def newest_step(folder: Path, length: int = 8) -> tuple[int, set[float]] | None:
    """Return the step that ranks of few numbers go on from, and all numbers then."""
    state = Counted(-1, length)
    with copies_of(state, folder) as copies:
        found = copies.find_newest(after_tokens=0)
        return None if found is None else (copies.load_generation(found).step, state.values())


def forget(folder: Path) -> None:
    with copies_of(Counted(1), folder) as copies:
        copies.start_save(progress_after(1))
        copies.remove_all_files()
