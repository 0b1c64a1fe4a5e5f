"""Profiler: some steps of a run as a trace and a table; graphs of torch's compiler."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch.profiler import ProfilerActivity, profile, record_function

from components.config.schema.monitoring import Profiler
from components.profiling.parts import Ranges
from components.profiling.profile import profile_of
from components.profiling.trace import STEP, read_trace
from components.run.folder import RunFolder
from components.torch_internals.operators import count_graphs
from components.train.module import Pretraining

_WARMUP_STEPS = 2  # steps; by then every kind of layer has run


class GraphCounter(Callback):
    """Callback that counts this rank's graphs. Graphs after the second step are recompiles."""

    _steps = _graphs = 0

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if pl_module.verdict:  # the step was rejected
            return
        self._steps += 1
        if self._steps <= _WARMUP_STEPS:
            self._graphs = count_graphs()

    @property
    def graph_counts(self) -> dict[str, int]:
        """The number of ``graphs`` in this process, and of ``recompiles`` among them."""
        graphs, has_warmed_up = count_graphs(), self._steps > _WARMUP_STEPS
        return {"graphs": graphs, "recompiles": graphs - self._graphs if has_warmed_up else 0}


@dataclass(kw_only=True, eq=False)
class ProfilerCallback(Callback):
    """Callback that profiles the steps in ``settings`` on this ``rank``.

    Between steps (evaluations, saves), the trace continues, but outside of any step's range.
    """

    settings: Profiler
    folder: RunFolder
    rank: int
    graphs: GraphCounter
    say: Callable[[str], None]
    _running: tuple[profile, Ranges] | None = field(default=None, init=False)
    _step: ExitStack | None = field(default=None, init=False)
    _taken: int = field(default=0, init=False)

    def on_train_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        first, done = self.settings.first_step, pl_module.progress.step
        if done >= first and not self.trace_file.exists():
            problem = (
                f"step {first} has passed: the run resumes after step {done} without a profile"
            )
            self.say(f"profiler.first_step: {problem}")
        self._begin_before(pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if self._running is not None:
            _wait(pl_module.device)
            self._step = ExitStack()
            self._step.enter_context(record_function(f"{STEP}{pl_module.progress.step + 1}"))

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        self._end_step(pl_module)
        if not pl_module.verdict:
            self._begin_before(pl_module)

    def on_train_end(self, *_: Any) -> None:
        self.close()

    def on_exception(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Discard an incomplete profile when the run ends."""
        if self._running is not None:
            self._stop()

    @property
    def trace_file(self) -> Path:
        return self.folder.profiles / f"rank-{self.rank}.trace.json.gz"

    def _begin_before(self, module: Pretraining) -> None:
        """Start the profile before the first step's batch is read. It survives rollbacks."""
        is_next = module.progress.step + 1 == self.settings.first_step
        if not is_next or self._taken == self.settings.steps or self._running is not None:
            return
        ranges = Ranges(module.stage_decoders)
        activities = {
            "cuda": [ProfilerActivity.CPU, ProfilerActivity.CUDA],
            "xpu": [ProfilerActivity.CPU, ProfilerActivity.XPU],
        }
        running = profile(
            activities=activities.get(module.device.type, [ProfilerActivity.CPU]),
            record_shapes=True,
            with_stack=self.settings.stacks,
        )
        running.start()
        self._running = running, ranges

    def _end_step(self, module: Pretraining) -> None:
        if self._step is None:
            return
        _wait(module.device)
        self._step.close()
        self._step, self._taken = None, self._taken + 1
        if self._taken == self.settings.steps:
            self._write(module)

    def _stop(self) -> profile:
        assert self._running is not None
        (running, ranges), self._running = self._running, None
        running.stop()
        ranges.remove_hooks()
        return running

    def _write(self, module: Pretraining) -> None:
        """Write the trace and its summary."""
        began = time.perf_counter()
        running = self._stop()
        self.folder.profiles.mkdir(exist_ok=True)
        running.export_chrome_trace(str(self.trace_file))
        name = f"{self.folder.profiles.name}/rank-{self.rank}.json"
        about = {"rank": self.rank, "compiler": self.graphs.graph_counts}
        self.folder.write_json(name, about | profile_of(read_trace(self.trace_file)))
        self.say(
            f"profile: {self.trace_file.parent} ({time.perf_counter() - began:.1f} s to write)"
        )


def _wait(device: torch.device) -> None:
    """Synchronize the device, so that a step contains all of its kernels."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
