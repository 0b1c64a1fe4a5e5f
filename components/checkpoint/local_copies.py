"""Local checkpointing: each rank's state on its node and on the next one, for lost nodes.

As Gemini (Wang et al., SOSP 2023, https://doi.org/10.1145/3600006.3613145) and NVIDIA's
resiliency extension have it. What is kept of a rank is what it would read of a checkpoint in
this layout: of what ranks hold alike there is one copy a node for two nodes, not one a rank.
"""

import hashlib
import json
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
from components.distributed.weight_shards import local
from components.torch_internals.distributed import group_of_members

_CLOSING_SECONDS = 5
_ALIGNMENT = 16  # bytes: tensors of any dtype can be seen in the buffer


@dataclass(kw_only=True, eq=False)
class LocalCopies:
    """Keep the newest local checkpoint of all ranks in ``folder``, each node's own.

    ``run`` says which run it is, and changes where the run goes back. Ranks of a node are
    ``ranks_per_node`` neighbours. All ranks call every method, and talk over ``group``, which
    nobody else does: another thread writes. While it does there are two generations; the former
    goes when all ranks have the new one, on their node and on the next.
    """

    folder: Path
    run: str
    state: DealtState
    group: NodeTree
    ranks_per_node: int
    timeout: timedelta
    pinned: bool
    _files: Mapping[Generation, Mapping[int, StateFile]] = field(
        default_factory=dict, init=False
    )

    def __post_init__(self) -> None:
        share = {name: local(tensor) for name, tensor in self.state.share().items()}
        self._places, length = _places(share)
        layout = [[name, str(one.dtype), list(one.shape)] for name, one in share.items()]
        told = json.dumps([self.run, self.group.rank, self.group.size, layout])
        mine = hashlib.sha256(told.encode()).hexdigest(), length
        everyones = self.group.all_gather(mine)
        self._keys = {rank: key for rank, (key, _) in enumerate(everyones)}
        self._lengths = [length for _, length in everyones]
        self._own = torch.empty(length, dtype=torch.uint8, pin_memory=self.pinned)
        self._attempt = self.group.all_gather(uuid4().hex[:8])[0]
        self._pool = ThreadPool(1)  # its thread keeps no process from ending
        # Else a process that is interrupted may take the pool's pipe before the pool.
        weakref.finalize(self, self._pool.close)
        self._job: AsyncResult[str | None] | None = None
        self._join_neighbours()

    def _join_neighbours(self) -> None:
        rank, ranks, step = self.group.rank, self.group.size, self.ranks_per_node
        self._moves = (
            [] if ranks == step else [(one, (one + step) % ranks) for one in range(ranks)]
        )
        self._groups = _connect(self._moves, rank, self.timeout)
        sender = (rank - step) % ranks
        self._kept = torch.empty(self._lengths[sender] if self._moves else 0, dtype=torch.uint8)
        self._sender = sender

    def save(self, progress: RunProgress) -> str | None:
        """Begin a local checkpoint; return why the one before could not be kept, if so."""
        problem = self.wait()
        for name, tensor in self.state.share().items():
            self._place(name).copy_(local(tensor), non_blocking=self.pinned)
        if self.pinned:
            torch.cuda.synchronize()
        self._job = self._pool.apply_async(self._write, (progress,))
        return problem

    def wait(self) -> str | None:
        """Wait for what is being written, and return why it could not be kept, if so."""
        job, self._job = self._job, None
        return job.get() if job else None

    def close(self) -> None:
        """Let what is being written come to its end, unless other ranks are lost."""
        if self._job:
            self._job.wait(_CLOSING_SECONDS)
        self._pool.terminate()

    def forget(self) -> None:
        """Remove what is kept of this run on this node."""
        self.wait()
        for path in self._files_here():
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Forget all, and remove the folder with the last rank of this node."""
        self.forget()
        with suppress(OSError):
            self.folder.rmdir()

    def newest(self, *, after_tokens: int) -> Generation | None:
        """Find the newest local checkpoint that all ranks have, own or kept by a neighbour."""
        found: dict[Generation, dict[int, StateFile]] = {}
        for one in whole_states(self._files_here(), self._keys):
            found.setdefault(one.header.generation, {})[one.header.rank] = one
        self._files = found
        self._sources: dict[Generation, dict[int, int]] = {}
        named = [(generation, sorted(ranks)) for generation, ranks in found.items()]
        for holder, of_rank in enumerate(self.group.all_gather(named)):
            for generation, ranks in of_rank:
                sources = self._sources.setdefault(generation, {})
                # A rank's own file first: nothing has to be sent then.
                sources |= {one: holder for one in ranks if one == holder or one not in sources}
        whole = [one for one, ranks in self._sources.items() if len(ranks) == self.group.size]
        return max((one for one in whole if one.tokens > after_tokens), default=None)

    def load(self, generation: Generation) -> RunProgress:
        """Fill the state from what `newest` found; who lacks its file is sent it."""
        files, sources = self._files.get(generation, {}), self._sources[generation]
        rank = self.group.rank
        moves = [(sources[one], one) for one in sorted(sources) if sources[one] != one]
        sent = {}
        for giver, taker in moves:
            if giver == rank:
                sent[taker] = torch.empty(self._lengths[taker], dtype=torch.uint8)
                files[taker].read(sent[taker])
        if sources[rank] == rank:
            files[rank].read(self._own)
        groups = _connect(moves, rank, self.timeout)
        _exchange(moves, rank, groups, sent, self._own)
        told = files[0].header.progress if sources[0] == rank else None
        progress = self.group.all_gather(told)[sources[0]]
        assert progress is not None

        def read(tensors: dict[str, Tensor]) -> None:
            for name, tensor in tensors.items():
                local(tensor).copy_(self._place(name))

        self.state.fill(read, self.state.tensors(), fresh_optimizer=False)
        return progress

    def _place(self, name: str) -> Tensor:
        begin, end, like = self._places[name]
        return self._own[begin:end].view(like.dtype).view(like.shape)

    def _files_here(self) -> dict[Path, Generation]:
        """List the files on this node that are this rank's to look after."""
        return files_in(self.folder, self.group.rank % self.ranks_per_node, self.ranks_per_node)

    def _write(self, progress: RunProgress) -> str | None:
        """Write, in the other thread, what is this rank's and its neighbour's."""
        rank = self.group.rank
        taker = (rank + self.ranks_per_node) % self.group.size
        _exchange(self._moves, rank, self._groups, {taker: self._own}, self._kept)
        states = [(rank, self._own), *([(self._sender, self._kept)] if self._moves else [])]

        def header(owner: int) -> Header:
            key = self._keys[owner]
            return Header(key=key, rank=owner, attempt=self._attempt, progress=progress)

        written, problem = [], None
        try:
            written = [write_state(self.folder, header(one), state) for one, state in states]
        except OSError as error:
            problem = f"{self.folder}: {error.strerror}"
        problems = [one for one in self.group.all_gather(problem) if one]
        new = Generation(progress.tokens, self._attempt)
        for path, generation in self._files_here().items():
            if generation == new if problems else path not in written:
                path.unlink(missing_ok=True)
        return problems[0] if problems else None


def _places(share: Mapping[str, Tensor]) -> tuple[dict[str, tuple[int, int, Tensor]], int]:
    """Place tensors one after another in bytes, and count these."""
    places, end = {}, 0
    for name, tensor in share.items():
        begin, end = end, end + tensor.numel() * tensor.itemsize
        places[name] = begin, end, torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        end += -end % _ALIGNMENT
    return places, end


_Groups = dict[frozenset[int], dist.ProcessGroup]


def _connect(moves: Iterable[tuple[int, int]], rank: int, timeout: timedelta) -> _Groups:
    """Join this rank to each that it sends to or receives from, by gloo.

    All take the pairs in one order, so that none waits for who waits for it.
    """
    pairs = sorted({(min(move), max(move)) for move in moves if rank in move})
    return {frozenset(pair): group_of_members(pair, timeout) for pair in pairs}


def _exchange(
    moves: Sequence[tuple[int, int]],
    rank: int,
    groups: _Groups,
    sent: Mapping[int, Tensor],
    received: Tensor,
) -> None:
    """Make moves from a rank to another, of which each receives one at most."""
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
