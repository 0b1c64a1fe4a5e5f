"""Bad step guard: skip a rejected step, roll back, stop, or relaunch."""

import os
import time
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch.distributed as dist
from lightning.pytorch import Callback, Trainer

from components.checkpoint.metadata import name_of
from components.distributed.collectives import by_first, gather_results
from components.errors import RecipeError
from components.fault_tolerance.guards import StepVerdict
from components.fault_tolerance.soft_failure import NotFiniteError
from components.run.event_log import EventKind, EventLog, node_name
from components.train.callbacks.checkpoints import Checkpoints
from components.train.callbacks.run_metrics import RunMetrics
from components.train.module import Pretraining

MOST_NAMED = 8


@dataclass(kw_only=True, eq=False)
class BadStepGuard(Callback):
    """Callback that acts on the verdict about a rejected step, equally on all ranks."""

    checkpoints: Checkpoints
    event_log: EventLog
    metrics: RunMetrics

    def on_train_batch_start(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if pl_module.verdict:
            self._act(pl_module, pl_module.verdict)

    def _act(self, module: Pretraining, verdict: StepVerdict) -> None:
        if verdict.action == "relaunch":
            self._relaunch(module, verdict)
        goes_back = verdict.action == "roll_back"
        steps = module.recipe.guard.roll_back.skip_steps if goes_back else 1
        bad = module.progress.step + 1
        first = max(0, bad - steps)
        window = module.data_module.batches.find_window(first, bad)
        evidence = {**verdict.evidence, "rule": verdict.rule, "bad_step": bad, "window": window}
        if verdict.rule == "non_finite":
            evidence["found_by"] = find_nonfinite_ranks(module)[:MOST_NAMED]
        try:
            module.guard.record_bad_step(verdict, tokens=module.progress.tokens, window=window)
            if goes_back:
                evidence |= self._go_back(module, before=first, verdict=verdict)
        except RecipeError:
            module.progress = replace(module.progress, guard=module.guard.export_state())
            self.checkpoints.start_save(module, ["tokens"], "stopping")
            self._note("stop", module, verdict.cause, evidence)
            raise
        module.progress = replace(module.progress, guard=module.guard.export_state())
        assert verdict.action != "stop", "the guard has raised"
        self._note(verdict.action, module, verdict.cause, evidence)

    def _relaunch(self, module: Pretraining, verdict: StepVerdict) -> NoReturn:
        """Log the non-finite values and end all ranks, without a checkpoint."""
        reports, at = find_nonfinite_ranks(module), module.progress
        ranks: dict[str, list[int]] = {}
        for report in reports:
            if report["in"] == "forward":
                ranks.setdefault(report["node"], []).append(report["rank"])
        evidence = {**verdict.evidence, "rule": verdict.rule, "bad_step": at.step + 1}
        evidence |= {"nodes": list(ranks)[:MOST_NAMED], "found_by": reports[:MOST_NAMED]}
        # All ranks wait for the log entry: after an early exit the launcher ends the writer.
        by_first(lambda: self._note("relaunch", module, verdict.cause, evidence))
        raise NotFiniteError(
            step=at.step + 1, tokens=at.tokens, cause=verdict.cause, ranks=ranks
        )

    def _go_back(
        self, module: Pretraining, *, before: int, verdict: StepVerdict
    ) -> dict[str, object]:
        """Load the newest checkpoint at or before step ``before``; remove later checkpoints."""
        left, tokens = module.progress.step, module.recipe.token_clock.tokens_after(before)
        if (progress := self.checkpoints.go_back(module, tokens)) is None:
            raise RecipeError(
                f"guard.{verdict.rule}.action",
                f"{verdict.cause}, and no checkpoint at or before step {before} exists",
                "raise checkpoint.keep, save more often, or set the action to skip",
            )
        module.engine.load_scale_state(progress.loss_scale)
        assert progress.guard is not None
        module.guard.go_back(progress.guard)
        module.progress = replace(progress, guard=module.guard.export_state())
        self.metrics.go_back(progress)
        return {
            "from_step": left,
            "checkpoint": name_of("tokens", progress.tokens),
            "dropped": self.checkpoints.resume_from_here(module.progress),
        }

    def _note(self, kind: EventKind, module: Pretraining, cause: str, evidence: Any) -> None:
        seconds = time.perf_counter() - self._began
        self.event_log.write_event(kind, module.progress, cause, evidence, seconds=seconds)


def find_nonfinite_ranks(module: Pretraining) -> list[dict[str, Any]]:
    """Gather non-finite values from all ranks, and return the ranks where they first appeared.

    Hidden states spread non-finite values, so the first stage with a non-finite forward pass is
    the origin, else a backward pass: averaged gradients name stage and weights, not data ranks.
    """
    stage = module.compute.nonfinite_stage
    forward = stage is not None
    own_report: dict[str, Any] = {
        "rank": dist.get_rank(),
        "node": node_name(os.environ),
        "stage": stage if forward else module.parallel_mesh.get_axis_rank("pipeline"),
        "in": "forward" if forward else "gradient",
        "weights": [] if forward else module.engine.nonfinite_gradients()[:MOST_NAMED],
    }
    reports = gather_results(lambda: own_report)
    in_forward = [report for report in reports if report["in"] == "forward"]
    first = min((report["stage"] for report in in_forward), default=None)
    first_reports = [report for report in in_forward if report["stage"] == first]
    return first_reports or [report for report in reports if report["weights"]]
