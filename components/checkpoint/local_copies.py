"""Local checkpointing: each rank's state on its own node and on the next, to survive node loss.

As in Gemini (Wang et al., SOSP 2023, https://doi.org/10.1145/3600006.3613145). A rank's copy
contains the tensors that the rank would read from a checkpoint in this layout. So replicated
tensors are stored once on each of two nodes, not once for each rank.
"""

import hashlib
import json
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.pool import AsyncResult, ThreadPool
from pathlib import Path
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor

from components.checkpoint.local_files import (
    Generation,
    Header,
    StateFile,
    files_in,
    whole_states,
    write_state,
)
from components.checkpoint.metadata import RunProgress
from components.checkpoint.saving import DealtState
from components.distributed.node_tree import NodeTree
from components.distributed.weight_shards import get_local_part
from components.torch_internals.distributed import group_of_members

_CLOSING_SECONDS = 5
_ALIGNMENT = 16  # bytes: the buffer can be viewed as tensors of any dtype


@dataclass(kw_only=True, eq=False)
class LocalCopies:
    """Newest local checkpoint of all ranks, in the node-local ``folder``.

    ``run`` identifies the run, and changes when the run is rewound. Each node has
    ``ranks_per_node`` consecutive ranks. All ranks call every method. ``group`` is for this
    class only: a background thread uses it. During a write two generations exist. The older one
    is removed when all ranks have the new one on their node and the next.
    """

    folder: Path
    run: str
    state: DealtState
    group: NodeTree
    ranks_per_node: int
    timeout: timedelta
    pinned: bool

    def __post_init__(self) -> None:
        share = {
            name: get_local_part(tensor)
            for name, tensor in self.state.select_own_tensors().items()
        }
        self._places, length = _places(share)
        layout = [
            [name, str(tensor.dtype), list(tensor.shape)] for name, tensor in share.items()
        ]
        description = json.dumps([
            self.run,
            self.group.global_rank,
            self.group.world_size,
            layout,
        ])
        own_entry = hashlib.sha256(description.encode()).hexdigest(), length
        entries = self.group.all_gather(own_entry)
        self._keys = {rank: key for rank, (key, _) in enumerate(entries)}
        self._lengths = [length for _, length in entries]
        self._own = torch.empty(length, dtype=torch.uint8, pin_memory=self.pinned)
        self._attempt = self.group.all_gather(uuid4().hex[:8])[0]
        self._pool = ThreadPool(1)  # a daemon thread: the process can exit
        # Otherwise an interrupted process may delete the pool's pipe before the pool.
        weakref.finalize(self, self._pool.close)
        self._job: AsyncResult[str | None] | None = None
        self._files: dict[Generation, dict[int, StateFile]] = {}
        rank, ranks, step = self.group.global_rank, self.group.world_size, self.ranks_per_node
        senders = range(ranks if ranks != step else 0)
        self._moves = [(sender, (sender + step) % ranks) for sender in senders]
        self._groups = _connect(self._moves, rank, self.timeout)
        self._sender = (rank - step) % ranks
        length = self._lengths[self._sender] if self._moves else 0
        self._received = torch.empty(length, dtype=torch.uint8)

    def start_save(self, progress: RunProgress) -> str | None:
        """Start a local checkpoint, and return the error of the previous one, or None."""
        problem = self.wait_for_write()
        for name, tensor in self.state.select_own_tensors().items():
            self._place(name).copy_(get_local_part(tensor), non_blocking=self.pinned)
        if self.pinned:
            torch.cuda.synchronize()
        self._job = self._pool.apply_async(self._write, (progress,))
        return problem

    def wait_for_write(self) -> str | None:
        """Wait for the write in progress, and return its error, or None."""
        job, self._job = self._job, None
        return job.get() if job else None

    def close(self) -> None:
        """Wait at most a few seconds for the write in progress: lost ranks would block it."""
        if self._job:
            self._job.wait(_CLOSING_SECONDS)
        self._pool.terminate()

    def remove_own_files(self) -> None:
        """Remove this rank's files, of all generations, from this node."""
        self.wait_for_write()
        for path in self._files_here():
            path.unlink(missing_ok=True)

    def remove_all_files(self) -> None:
        """Remove all files. The last rank of this node also removes the folder."""
        self.remove_own_files()
        with suppress(OSError):
            self.folder.rmdir()

    def find_newest(self, *, after_tokens: int) -> Generation | None:
        """Find the newest generation after ``after_tokens`` with the state of every rank."""
        files = self._files = {}
        for file in whole_states(self._files_here(), self._keys):
            generation = Generation(file.header.progress.tokens, file.header.attempt)
            files.setdefault(generation, {})[file.header.rank] = file
        self._sources: dict[Generation, dict[int, int]] = {}
        own_generations = [(generation, sorted(ranks)) for generation, ranks in files.items()]
        for holder, of_rank in enumerate(self.group.all_gather(own_generations)):
            for generation, ranks in of_rank:
                sources = self._sources.setdefault(generation, {})
                # Prefer a rank's own file, which needs no transfer.
                sources |= {
                    rank: holder for rank in ranks if rank == holder or rank not in sources
                }
        whole = [
            generation
            for generation, ranks in self._sources.items()
            if len(ranks) == self.group.world_size
        ]
        return max(
            (generation for generation in whole if generation.tokens > after_tokens),
            default=None,
        )

    def load_generation(self, generation: Generation) -> RunProgress:
        """Fill the state from the files of `find_newest`. Ranks without a file receive it."""
        files, sources = self._files.get(generation, {}), self._sources[generation]
        rank = self.group.global_rank
        moves = [
            (sources[owner], owner) for owner in sorted(sources) if sources[owner] != owner
        ]
        sent = {}
        for giver, taker in moves:
            if giver == rank:
                sent[taker] = torch.empty(self._lengths[taker], dtype=torch.uint8)
                files[taker].read_into(sent[taker])
        if sources[rank] == rank:
            files[rank].read_into(self._own)
        groups = _connect(moves, rank, self.timeout)
        _exchange(moves, rank, groups, sent, self._own)
        own_progress = files[0].header.progress if sources[0] == rank else None
        progress = self.group.all_gather(own_progress)[sources[0]]
        assert progress is not None

        def read_tensors(tensors: dict[str, Tensor]) -> None:
            for name, tensor in tensors.items():
                get_local_part(tensor).copy_(self._place(name))

        self.state.load_tensors(
            read_tensors, self.state.collect_tensors(), fresh_optimizer=False
        )
        return progress

    def _place(self, name: str) -> Tensor:
        begin, end, like = self._places[name]
        return self._own[begin:end].view(like.dtype).view(like.shape)

    def _files_here(self) -> dict[Path, Generation]:
        """List the files on this node that this rank manages."""
        return files_in(
            self.folder, self.group.global_rank % self.ranks_per_node, self.ranks_per_node
        )

    def _write(self, progress: RunProgress) -> str | None:
        """Write the states of this rank and its neighbor, in the background thread.

        On an error of any rank, all ranks remove the new generation; else the older ones.
        """
        rank = self.group.global_rank
        taker = (rank + self.ranks_per_node) % self.group.world_size
        _exchange(self._moves, rank, self._groups, {taker: self._own}, self._received)
        states = [(rank, self._own), *([(self._sender, self._received)] if self._moves else [])]

        def build_header(owner: int) -> Header:
            key = self._keys[owner]
            return Header(key=key, rank=owner, attempt=self._attempt, progress=progress)

        written, problem = [], None
        try:
            written = [
                write_state(self.folder, build_header(owner), state) for owner, state in states
            ]
        except OSError as error:
            problem = f"{self.folder}: {error.strerror}"
        problems = [text for text in self.group.all_gather(problem) if text]
        new = Generation(progress.tokens, self._attempt)
        for path, generation in self._files_here().items():
            if generation == new if problems else path not in written:
                path.unlink(missing_ok=True)
        return problems[0] if problems else None


def _places(share: Mapping[str, Tensor]) -> tuple[dict[str, tuple[int, int, Tensor]], int]:
    """Return the byte range of each tensor in a buffer, and the buffer's length."""
    places, end = {}, 0
    for name, tensor in share.items():
        begin, end = end, end + tensor.numel() * tensor.itemsize
        places[name] = begin, end, torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        end += -end % _ALIGNMENT
    return places, end


_Groups = dict[frozenset[int], dist.ProcessGroup]


def _connect(moves: Iterable[tuple[int, int]], rank: int, timeout: timedelta) -> _Groups:
    """Make a gloo group with each partner of this rank, on all ranks in the same order."""
    pairs = sorted({(min(move), max(move)) for move in moves if rank in move})
    return {frozenset(pair): group_of_members(pair, timeout) for pair in pairs}


def _exchange(
    moves: Sequence[tuple[int, int]],
    rank: int,
    groups: _Groups,
    sent: Mapping[int, Tensor],
    received: Tensor,
) -> None:
    """Send and receive tensors by ``moves`` (giver, taker). A rank receives at most one."""
    works = []
    for giver, taker in moves:
        if giver == rank and sent[taker].numel():
            group = groups[frozenset((giver, taker))]
            works.append(dist.isend(sent[taker], taker, group))
        elif taker == rank and received.numel():
            works.append(dist.irecv(received, giver, groups[frozenset((giver, taker))]))
    for work in works:
        if work is not None:
            work.wait()
