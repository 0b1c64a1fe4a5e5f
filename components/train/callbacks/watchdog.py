"""Watchdog callback: time limits, rank health, and replica comparison."""

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
from components.distributed.collectives import gather_results
from components.distributed.mesh import sum_over_ranks
from components.fault_tolerance import failures, hang, rank_health
from components.fault_tolerance.hang import HangWatch, WatchedWork
from components.run.event_log import EventKind, EventLog
from components.run.folder import RunFolder
from components.train.module import Pretraining
from components.train.trainer import rank_here


class Hang(RuntimeError):  # noqa: N818 - the error's text starts with the class name
    """Error in the error file of a rank that its watchdog ends."""


def watch_for_hangs(folder: RunFolder, settings: Watchdog, *, ranks: int) -> HangWatch:
    """Start the watchdog of this rank, with the time limit of a pause for the start.

    A hung rank writes a report to ``hangs/``, and an error to torchrun's error file. A rank
    that does not wait for others also logs to the event log; so do the first and the last of
    ``ranks``, because the culprit may hold the GIL and be unable to log.
    """
    hang.record_collectives(settings.collectives)
    # No retries: a hung process ends soon.
    event_log = EventLog(file=folder.events, writes=True, retry_seconds=0.0)

    def leave_word(work: WatchedWork, text: str, report: Mapping[str, Any]) -> None:
        if report["waits_in"] is None or report["rank"] in (0, ranks - 1):
            evidence = {key: report[key] for key in ("rank", "node", "waits_in")}
            event_log.write_event("hang", work, text, evidence, seconds=work.seconds)
        try:
            raise Hang(text)
        except Hang as error:
            ErrorHandler().record_exception(error)
        # Later errors of the main thread, when the other ranks are gone, must not overwrite it.
        os.environ.pop("TORCHELASTIC_ERROR_FILE", None)

    look = hang.last_collectives
    watch = HangWatch(
        folder=folder.hangs, rank=rank_here(), collectives=look, on_hang=leave_word
    )
    watch.watch_work(WatchedWork("start", 0, 0, settings.pause_seconds))
    return watch


@dataclass(kw_only=True, eq=False)
class WatchdogCallback(Callback):
    """Callback that sets time limits, reports slow ranks, and compares replicas.

    It precedes the callbacks that save: no checkpoint contains replicas that differ.
    """

    settings: Watchdog
    expect: Callable[[WatchedWork], None]
    folder: RunFolder
    event_log: EventLog
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._growth = rank_health.Growth(fraction=self.settings.memory_growth_fraction)
        self._is_first = True

    def on_train_batch_start(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        limits, at = self.settings, pl_module.progress
        # The first step of a process includes connections and compilation.
        seconds = limits.pause_seconds if self._is_first else limits.step_seconds
        self._is_first = False
        self.expect(WatchedWork(f"step {at.step + 1}", at.step, at.tokens, seconds))

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        # A guard may read a checkpoint after a bad step.
        self._pause(pl_module)
        if pl_module.verdict:  # the step was rejected
            return
        self._look(pl_module)
        if pairs := pl_module.overflow_pairs:
            bound = pl_module.recipe.parallelism.expert_capacity_factor
            text = (
                f"parallelism.expert_capacity_factor={bound:g}: {pairs:,} token-expert pairs "
            )
            text += f"exceed the capacity in step {pl_module.progress.step}, which was run "
            text += (
                "again with exact sizes; if this happens often, set a larger factor, or null"
            )
            self._tell(pl_module, "expert_overflow", text, {"pairs": pairs, "bound": bound})
        saves = pl_module.is_due(pl_module.recipe.checkpoint.every_tokens)
        if saves or pl_module.is_local_due or pl_module.stopping:
            self._compare(pl_module, pl_module.progress.step)

    def on_train_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        """Log on the first rank why the ranks of this job restarted, if they did."""
        pl_module.engine.on_gradients = lambda: self._before_update(pl_module)
        if dist.get_rank():  # only the first rank reads the files, which it then removes
            return
        ranks = self.folder.path / "ranks"
        errors = failures.read_errors(ranks)
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        if not errors and not restarts:
            return
        cause, silent = failures.describe_end(errors, ranks=dist.get_world_size())
        evidence = {"restart": restarts, "without_a_word": silent}
        ranks.touch()  # gives the present time of the file system, as errors have
        seconds = failures.seconds_between(errors, ranks)
        self.event_log.write_event(
            "restart", pl_module.progress, cause, evidence, seconds=seconds
        )
        failures.forget_errors(ranks)

    def _pause(self, module: Pretraining) -> None:
        at, seconds = module.progress, self.settings.pause_seconds
        self.expect(WatchedWork(f"after step {at.step}", at.step, at.tokens, seconds))

    def _look(self, module: Pretraining) -> None:
        if (figures := module.rank_figures.last_report) is None:
            return
        kinds = work_kinds(module.recipe.rank_groups)
        for slow in rank_health.slow_ranks(
            figures.seconds, kinds, ratio=self.settings.slow_ratio
        ):
            text = f"rank {slow.rank} computes {slow.ratio:.1f} times as long as similar ranks"
            evidence = {"rank": slow.rank, "ratio": slow.ratio, "seconds_a_step": slow.seconds}
            self._tell(module, "slow_rank", text, evidence)
        for rank, fraction in self._growth.find_growth(figures.memory_bytes).items():
            text = f"rank {rank} uses {fraction:.0%} more memory than before"
            evidence = {"rank": rank, "fraction": fraction, "bytes": figures.memory_bytes[rank]}
            self._tell(module, "memory_growth", text, evidence)

    def _before_update(self, module: Pretraining) -> None:
        """Compare the weights of the step before a sharded update hides or spreads an error."""
        step, every = module.progress.step + 1, self.settings.replicas_every_steps
        if isinstance(every, int) and step % every == 0:
            self._compare(module, step)

    def _compare(self, module: Pretraining, step: int) -> None:
        """Compare replicas in ``step``; all ranks raise ReplicasDifferError on a difference."""
        if dist.get_world_size() == 1:
            return
        module.engine.wait_for_weights()
        mine = rank_health.compare_replicas(module.engine.shards, module.parallel_mesh)
        num_differences = sum_over_ranks(torch.tensor(len(mine), device=module.device))
        if not num_differences.item():  # the usual case, with a single number to reduce
            return
        differences = list(dict.fromkeys(chain.from_iterable(gather_results(lambda: mine))))
        weights, ranks = [each.weight for each in differences], list(differences[0].ranks)
        text = f"{weights[0]} differs between replicas on ranks "
        text += ", ".join(map(str, ranks))
        self._tell(module, "replicas", text, {"weights": weights, "ranks": ranks})
        raise rank_health.ReplicasDifferError(f"in step {step} {text}")

    def _tell(
        self, module: Pretraining, kind: EventKind, text: str, evidence: dict[str, Any]
    ) -> None:
        self.say(text)
        self.event_log.write_event(kind, module.progress, text, evidence)


@cache
def work_kinds(groups: RankGroups) -> list[int]:
    """Return a number for each rank's kind of work: its pipeline stages and its experts."""
    places = map(groups.find_coordinates, range(groups.layout.num_ranks))
    return [place["pipeline"] * groups.layout.expert + place["expert"] for place in places]
