"""The profile of a run: some steps under torch's profiler, left as a trace and as a table."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from typing_extensions import override

from components.config.schema.recording import Profiler
from components.fault_tolerance.guards import StepVerdict
from components.profiling.parts import Ranges
from components.profiling.profile import ON_PURPOSE, profile_of
from components.profiling.trace import STEP, read_trace
from components.run.folder import RunFolder
from components.train.callbacks.hooks import RunCallback
from components.train.module import Pretraining
from components.train.results import GraphCount


class Profiling(RunCallback):
    """Profile the steps that ``settings`` name, on this ``rank``.

    Between steps, where others evaluate or save, the trace goes on, but its steps are over.
    """

    def __init__(
        self,
        *,
        settings: Profiler,
        folder: RunFolder,
        rank: int,
        graphs: GraphCount,
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._rank = rank
        self._graphs = graphs
        self._say = say
        self._running: tuple[profile, Ranges] | None = None
        self._step: ExitStack | None = None
        self._left = settings.steps

    @override
    def on_begin(self, module: Pretraining) -> None:
        first, done = self._settings.first_step, module.progress.step
        if done >= first and not self.trace.exists():
            self._say(
                f"profiler.first_step: {first} is over, the run goes on after step {done}: "
                "nothing is profiled"
            )
        self._begin_before(module)

    @override
    def before_step(self, module: Pretraining, batch: Tensor) -> None:
        if self._running is not None:
            _wait(module.device)
            self._step = ExitStack()
            self._step.enter_context(record_function(f"{STEP}{module.progress.step + 1}"))

    @override
    def on_step(self, module: Pretraining) -> None:
        self._end_step(module)
        self._begin_before(module)

    @override
    def on_bad_step(self, module: Pretraining, verdict: StepVerdict) -> None:
        self._end_step(module)

    @override
    def on_close(self) -> None:
        """Drop what a run that ends within the profile has seen of it."""
        if self._running is not None:
            self._stop()

    @property
    def trace(self) -> Path:
        return self._folder.profiles / f"rank-{self._rank}.trace.json.gz"

    def _begin_before(self, module: Pretraining) -> None:
        """Begin when the next step is the first one, before its batch is read.

        Guards can take the run back to before that step: a profile goes on that has begun.
        """
        is_next = module.progress.step + 1 == self._settings.first_step
        if not is_next or not self._left or self._running is not None:
            return
        ranges = Ranges(module.decoders)
        running = profile(
            activities=_activities(module.device),
            record_shapes=True,
            with_stack=self._settings.stacks,
        )
        running.start()
        self._running = running, ranges

    def _end_step(self, module: Pretraining) -> None:
        if self._step is None:
            return
        _wait(module.device)
        self._step.close()
        self._step = None
        self._left -= 1
        if self._left == 0:
            self._write(module)

    def _stop(self) -> profile:
        assert self._running is not None
        (running, ranges), self._running = self._running, None
        running.stop()
        ranges.remove()
        return running

    def _write(self, module: Pretraining) -> None:
        """Keep the trace, and what it says."""
        began = time.perf_counter()
        running = self._stop()
        self._folder.profiles.mkdir(exist_ok=True)
        running.export_chrome_trace(str(self.trace))
        recipe = module.recipe
        found = profile_of(
            read_trace(self.trace),
            machine=recipe.cluster.hardware,
            dtype=str(module.dtype_of("compute")).removeprefix("torch."),
        )
        name = f"{self._folder.profiles.name}/rank-{self._rank}.json"
        about = {"rank": self._rank, "compiler": self._graphs.figures}
        self._folder.write_json(name, {**about, **found})
        seconds = time.perf_counter() - began
        self._say(f"profile: {self.trace.parent} ({seconds:.1f} s to write)")


def _activities(device: torch.device) -> list[ProfilerActivity]:
    """Ask for what the host does, and what its device does if it has one."""
    host = ProfilerActivity.CPU
    beside = {"cuda": [ProfilerActivity.CUDA], "xpu": [ProfilerActivity.XPU]}
    return [host, *beside.get(device.type, [])]


def _wait(device: torch.device) -> None:
    """Let a step begin and end with an idle device: all of its kernels are then in it."""
    if device.type != "cpu":
        with record_function(ON_PURPOSE):
            torch.accelerator.synchronize(device)
