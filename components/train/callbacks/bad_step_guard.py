"""What is done about a step that is not taken: leave it out, go back, stop, or relaunch."""

import os
import time
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch.distributed as dist
from lightning.pytorch import Callback, Trainer

from components.checkpoint.metadata import name_of
from components.distributed.collectives import by_first, together
from components.errors import RecipeError
from components.fault_tolerance.guards import StepVerdict
from components.fault_tolerance.soft_failure import NotFiniteError
from components.run.event_log import EventLog, Kind, node_name
from components.train.callbacks.checkpoints import Checkpoints
from components.train.callbacks.run_metrics import RunMetrics
from components.train.module import Pretraining

MOST_NAMED = 8


@dataclass(kw_only=True, eq=False)
class BadStepGuard(Callback):
    """Act on the verdict over a step that was not taken, on all ranks alike."""

    checkpoints: Checkpoints
    journal: EventLog
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
        window = module.data.batches.window(first, bad)
        evidence = {**verdict.evidence, "rule": verdict.rule, "bad_step": bad, "window": window}
        if verdict.rule == "non_finite":
            evidence["found_by"] = found_by(module)[:MOST_NAMED]
        try:
            module.guard.note(verdict, tokens=module.progress.tokens, window=window)
            if goes_back:
                evidence |= self._go_back(module, before=first, verdict=verdict)
        except RecipeError:
            module.progress = replace(module.progress, guard=module.guard.state())
            self.checkpoints.save(module, ["tokens"], "stopping")
            self._note("stop", module, verdict.cause, evidence)
            raise
        module.progress = replace(module.progress, guard=module.guard.state())
        assert verdict.action != "stop", "the guard has raised"
        self._note(verdict.action, module, verdict.cause, evidence)

    def _relaunch(self, module: Pretraining, verdict: StepVerdict) -> NoReturn:
        """End all ranks with what they know of the step; nothing is saved of it."""
        found, at = found_by(module), module.progress
        ranks: dict[str, list[int]] = {}
        for one in found:
            if one["in"] == "forward":
                ranks.setdefault(one["node"], []).append(one["rank"])
        evidence = {**verdict.evidence, "rule": verdict.rule, "bad_step": at.step + 1}
        evidence |= {"nodes": list(ranks)[:MOST_NAMED], "found_by": found[:MOST_NAMED]}
        # No rank ends before it is written: the launcher would end the one that writes.
        by_first(lambda: self._note("relaunch", module, verdict.cause, evidence))
        raise NotFiniteError(
            step=at.step + 1, tokens=at.tokens, cause=verdict.cause, ranks=ranks
        )

    def _go_back(
        self, module: Pretraining, *, before: int, verdict: StepVerdict
    ) -> dict[str, object]:
        """Load the newest checkpoint of the first ``before`` steps; later ones are no more."""
        left, tokens = module.progress.step, module.recipe.clock.tokens_after(before)
        if (progress := self.checkpoints.go_back(module, tokens)) is None:
            raise RecipeError(
                f"guard.{verdict.rule}.action",
                f"{verdict.cause}, and no checkpoint of step {before} or before it is kept",
                "raise checkpoint.keep, save more often, or set the action to skip",
            )
        module.engine.load_scale_state(progress.loss_scale)
        assert progress.guard is not None
        module.guard.go_back(progress.guard)
        module.progress = replace(progress, guard=module.guard.state())
        self.metrics.go_back(progress)
        return {
            "from_step": left,
            "checkpoint": name_of("tokens", progress.tokens),
            "dropped": self.checkpoints.claim(module.progress),
        }

    def _note(self, kind: Kind, module: Pretraining, cause: str, evidence: Any) -> None:
        seconds = time.perf_counter() - self._began
        self.journal.note(kind, module.progress, cause, evidence, seconds=seconds)


def found_by(module: Pretraining) -> list[dict[str, Any]]:
    """Ask all ranks what of theirs is no number; name those where it began.

    It goes from stage to stage with hidden states, so the first stage where a forward pass was
    not finite counts. If none was, it began in a backward pass: gradients are averaged by then,
    and tell the stage and the weights but not the data rank.
    """
    stage = module.compute.unsound_stage
    forward = stage is not None
    mine: dict[str, Any] = {
        "rank": dist.get_rank(),
        "node": node_name(os.environ),
        "stage": stage if forward else module.mesh.place("pipeline"),
        "in": "forward" if forward else "gradient",
        "weights": [] if forward else module.engine.unsound()[:MOST_NAMED],
    }
    everyones = together(lambda: mine)
    begun = [one for one in everyones if one["in"] == "forward"]
    first = min((one["stage"] for one in begun), default=None)
    found = [one for one in begun if one["stage"] == first]
    return found or [one for one in everyones if one["weights"]]
