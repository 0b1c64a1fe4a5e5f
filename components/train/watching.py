"""The watchdog's place in the loop: limits of time, looks at the ranks, equal replicas."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

from components.life.collectives import last_collectives, record_collectives
from components.life.hang import Hang, HangWatch
from components.life.journal import Journal, Kind
from components.life.replicas import Difference, ReplicasDifferError, compare_replicas
from components.life.slow import Growth, slow_ranks
from components.parallelism.mesh import Mesh, sum_over_ranks
from components.spec.watchdog import Watchdog
from components.train.callback import RunCallback
from components.train.module import Pretraining
from components.train.strategy import rank_here


def watch_for_hangs(folder: Path, settings: Watchdog) -> HangWatch:
    """Begin to watch this rank; its start is a pause.

    What it leaves when it hangs is below ``folder``, and where torchrun reads errors.
    """
    record_collectives(settings.collectives)
    watch = HangWatch(
        folder=folder, rank=rank_here(), collectives=last_collectives, on_hang=_leave_error
    )
    watch.expect("start", settings.pause_seconds)
    return watch


def _leave_error(hang: Hang) -> None:
    try:
        raise hang
    except Hang:
        ErrorHandler().record_exception(hang)


class Watching(RunCallback):
    """Say how long each step may take; name slow ranks; let no replica differ unnoticed.

    It comes before whoever saves, so that no checkpoint holds replicas that differ.
    """

    def __init__(
        self,
        *,
        settings: Watchdog,
        hang: HangWatch,
        journal: Journal,
        say: Callable[[str], None],
        checkpoint_tokens: int,
    ) -> None:
        self._settings = settings
        self._hang = hang
        self._journal = journal
        self._say = say
        self._checkpoint_tokens = checkpoint_tokens
        self._growth = Growth(fraction=settings.memory_growth_fraction)
        self._is_first = True

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Pretraining)
        limits = self._settings
        # In its first step a process makes connections, and compiles where it does.
        seconds = limits.pause_seconds if self._is_first else limits.step_seconds
        self._is_first = False
        self._hang.expect(f"step {pl_module.progress.step + 1}", seconds)

    def on_step(self, module: Pretraining) -> None:
        step, every = module.progress.step, self._settings.replicas_every_steps
        self._hang.expect(f"after step {step}", self._settings.pause_seconds)
        self._look(module)
        saves = module.is_due(self._checkpoint_tokens) or module.stopping
        if saves or (isinstance(every, int) and step % every == 0):
            self._compare(module)

    def _look(self, module: Pretraining) -> None:
        told = module.rank_figures.told
        if told is None:
            return
        alike = kinds_of_work(module.mesh)
        for slow in slow_ranks(told.seconds, alike, ratio=self._settings.slow_ratio):
            self._tell(
                module,
                "slow_rank",
                f"rank {slow.rank} computes {slow.ratio:.1f} times as long as its like",
                {"rank": slow.rank, "ratio": slow.ratio, "seconds_a_step": slow.seconds},
            )
        for rank, fraction in self._growth.look(told.memory_bytes).items():
            self._tell(
                module,
                "memory_growth",
                f"rank {rank} holds {fraction:.0%} more memory than it did",
                {"rank": rank, "fraction": fraction, "bytes": told.memory_bytes[rank]},
            )

    def _compare(self, module: Pretraining) -> None:
        """Compare replicas; on a difference all ranks end before anything is saved.

        Raises:
            ReplicasDifferError: with the weight and the ranks that differ.
        """
        differences = everyones(compare_replicas(module.engine.shards, module.mesh))
        if not differences:
            return
        first = differences[0]
        ranks = ", ".join(map(str, first.ranks))
        text = f"{first.weight} is not what its other ranks hold on rank {ranks}"
        self._tell(
            module,
            "replicas",
            text,
            {"weights": [each.weight for each in differences], "ranks": list(first.ranks)},
        )
        raise ReplicasDifferError(f"after step {module.progress.step} {text}")

    def _tell(
        self, module: Pretraining, kind: Kind, text: str, evidence: dict[str, Any]
    ) -> None:
        self._say(text)
        self._journal.note(
            kind,
            step=module.progress.step,
            tokens=module.progress.tokens,
            cause=text,
            seconds=0.0,
            evidence=evidence,
        )


def kinds_of_work(mesh: Mesh) -> list[int]:
    """Number each rank's work: that of a pipeline stage, and of its experts."""
    degrees = mesh.degrees
    kinds = torch.arange(degrees.pipeline * degrees.expert)
    kinds = kinds.view(degrees.pipeline, 1, 1, degrees.expert, 1, 1)
    places = mesh.root.mesh.cpu()
    by_rank = torch.empty(degrees.ranks, dtype=torch.int64)
    by_rank[places.flatten()] = kinds.expand(places.shape).flatten()
    found: list[int] = by_rank.tolist()
    return found


def everyones(mine: list[Difference]) -> list[Difference]:
    """Collect the differences that any rank knows of; all ranks call this.

    Most often there is none, and one number says so.
    """
    if dist.get_world_size() == 1:
        return mine
    device = torch.accelerator.current_accelerator() if dist.get_backend() != "gloo" else None
    if not sum_over_ranks(torch.tensor(len(mine), device=device)).item():
        return []
    lists: list[list[Difference]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(lists, mine)
    return list(dict.fromkeys(each for one in lists for each in one))
