"""The watchdog's place in the loop: limits of time, looks at the ranks, equal replicas."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer
from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

from components.config.rank_groups import RankGroups
from components.config.schema.monitoring import Watchdog
from components.distributed.collectives import together
from components.distributed.mesh import sum_over_ranks
from components.fault_tolerance import failures, hang, rank_health
from components.fault_tolerance.hang import HangWatch, WatchedWork
from components.run.event_log import EventLog, Kind
from components.run.folder import RunFolder
from components.train.module import Pretraining
from components.train.trainer import rank_here


class Hang(RuntimeError):  # noqa: N818 - its name begins the message by which others know it
    """What the error file says of a rank that its watchdog ends."""


def watch_for_hangs(folder: RunFolder, settings: Watchdog, *, ranks: int) -> HangWatch:
    """Begin to watch this rank; its start is a pause.

    What it leaves when it hangs is below ``hangs/``, and where torchrun reads errors. The
    journal is told by who waits for no other rank, and in any case by the first and the last of
    ``ranks``: one of them may be what holds the interpreter's lock and cannot say so.
    """
    hang.record_collectives(settings.collectives)
    journal = EventLog(file=folder.journal, writes=True, retry_seconds=0.0)  # its end is near

    def leave_word(work: WatchedWork, text: str, report: Mapping[str, Any]) -> None:
        if report["waits_in"] is None or report["rank"] in (0, ranks - 1):
            evidence = {key: report[key] for key in ("rank", "node", "waits_in")}
            journal.note("hang", work, text, evidence, seconds=work.seconds)
        try:
            raise Hang(text)
        except Hang as error:
            ErrorHandler().record_exception(error)
        # What the main thread raises when the others are gone would take this word's place.
        os.environ.pop("TORCHELASTIC_ERROR_FILE", None)

    look = hang.last_collectives
    watch = HangWatch(
        folder=folder.hangs, rank=rank_here(), collectives=look, on_hang=leave_word
    )
    watch.expect(WatchedWork("start", 0, 0, settings.pause_seconds))
    return watch


@dataclass(kw_only=True, eq=False)
class WatchdogCallback(Callback):
    """Describe how long each step may take; name slow ranks; let no replica differ unnoticed.

    It comes before whoever saves, so that no checkpoint holds replicas that differ.
    """

    settings: Watchdog
    expect: Callable[[WatchedWork], None]
    folder: RunFolder
    journal: EventLog
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._growth = rank_health.Growth(fraction=self.settings.memory_growth_fraction)
        self._is_first = True

    def on_train_batch_start(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        limits, at = self.settings, pl_module.progress
        # In its first step a process makes connections, and compiles where it does.
        seconds = limits.pause_seconds if self._is_first else limits.step_seconds
        self._is_first = False
        self.expect(WatchedWork(f"step {at.step + 1}", at.step, at.tokens, seconds))

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        # A guard may read a checkpoint after a bad step.
        self._pause(pl_module)
        if pl_module.verdict:  # the step was not taken
            return
        self._look(pl_module)
        if pairs := pl_module.pairs_beyond:
            bound = pl_module.recipe.parallelism.expert_bound
            text = (
                f"parallelism.expert_bound={bound:g}: {pairs:,} pairs of token and expert had "
            )
            text += f"no room in step {pl_module.progress.step}, which was computed again with "
            text += "exact sizes; if that is often so, set a larger bound, or null"
            self._tell(pl_module, "expert_bound", text, {"pairs": pairs, "bound": bound})
        saves = pl_module.is_due(pl_module.recipe.checkpoint.every_tokens)
        if saves or pl_module.is_local_due or pl_module.stopping:
            self._compare(pl_module, pl_module.progress.step)

    def on_train_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        """Report on the first rank why the ranks of this job started again, if they did."""
        pl_module.engine.on_gradients = lambda: self._before_update(pl_module)
        if dist.get_rank():  # who reads while the first rank forgets finds files gone
            return
        errors = failures.read_errors(self.folder.path / "ranks")
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        if not errors and not restarts:
            return
        cause, silent = failures.describe_end(errors, ranks=dist.get_world_size())
        evidence = {"restart": restarts, "without_a_word": silent}
        seconds = failures.seconds_between(errors, self.folder.journal)  # has just its start
        self.journal.note("restart", pl_module.progress, cause, evidence, seconds=seconds)
        failures.forget_errors(self.folder.path / "ranks")

    def _pause(self, module: Pretraining) -> None:
        at, seconds = module.progress, self.settings.pause_seconds
        self.expect(WatchedWork(f"after step {at.step}", at.step, at.tokens, seconds))

    def _look(self, module: Pretraining) -> None:
        if (told := module.rank_figures.told) is None:
            return
        alike = work_kinds(module.recipe.rank_groups)
        for slow in rank_health.slow_ranks(told.seconds, alike, ratio=self.settings.slow_ratio):
            text = f"rank {slow.rank} computes {slow.ratio:.1f} times as long as its like"
            evidence = {"rank": slow.rank, "ratio": slow.ratio, "seconds_a_step": slow.seconds}
            self._tell(module, "slow_rank", text, evidence)
        for rank, fraction in self._growth.look(told.memory_bytes).items():
            text = f"rank {rank} holds {fraction:.0%} more memory than it did"
            evidence = {"rank": rank, "fraction": fraction, "bytes": told.memory_bytes[rank]}
            self._tell(module, "memory_growth", text, evidence)

    def _before_update(self, module: Pretraining) -> None:
        """Compare what the step has computed with, before the update hides it.

        An engine that divides the update sends the new rows to all: after it what a rank had
        been wrong in is gone, or has become everyone's.
        """
        step, every = module.progress.step + 1, self.settings.replicas_every_steps
        if isinstance(every, int) and step % every == 0:
            self._compare(module, step)

    def _compare(self, module: Pretraining, step: int) -> None:
        """Compare replicas in ``step``; on a difference all ranks end."""
        if dist.get_world_size() == 1:
            return
        module.engine.settle()
        mine = rank_health.compare_replicas(module.engine.shards, module.mesh)
        found = sum_over_ranks(torch.tensor(len(mine), device=module.device))
        if not found.item():  # most often: one number tells all ranks
            return
        differences = list(dict.fromkeys(chain.from_iterable(together(lambda: mine))))
        weights, ranks = [each.weight for each in differences], list(differences[0].ranks)
        text = f"{weights[0]} is not the same on all ranks that hold it: it differs on "
        text += ", ".join(map(str, ranks))
        self._tell(module, "replicas", text, {"weights": weights, "ranks": ranks})
        raise rank_health.ReplicasDifferError(f"in step {step} {text}")

    def _tell(
        self, module: Pretraining, kind: Kind, text: str, evidence: dict[str, Any]
    ) -> None:
        self.say(text)
        self.journal.note(kind, module.progress, text, evidence)


@cache
def work_kinds(groups: RankGroups) -> list[int]:
    """Number the work of each rank: that of its pipeline stages, and of its experts."""
    places = map(groups.coordinates, range(groups.layout.ranks))
    return [place["pipeline"] * groups.layout.expert + place["expert"] for place in places]
