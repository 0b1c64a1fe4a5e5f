"""Progress bar of a run, or plain lines without a terminal, and stops on request."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from components import terminal
from components.train.module import Pretraining

LINES = 20  # plain lines per run


class RunProgressBar(ProgressBar):
    """Progress bar with loss, tokens per second, share of the budget, and remaining time."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._bar: Progress | None = None

    def enable(self) -> None:
        self._console.quiet = False

    def disable(self) -> None:
        self._console.quiet = True

    def on_train_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        self._began = time.monotonic()
        self._first_tokens = pl_module.progress.tokens
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} % of the tokens"),
                TextColumn("{task.fields[figures]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task(
                pl_module.recipe.name,
                total=pl_module.recipe.derived_numbers.steps,
                completed=pl_module.progress.step,
                figures="before the first step",
            )
            self._bar.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if pl_module.verdict:  # the step was rejected
            return
        last, steps = pl_module.last, pl_module.recipe.derived_numbers.steps
        assert last is not None
        lines, lines_before = (step * LINES // steps for step in (last.step, last.step - 1))
        if self._bar is not None:
            figures = f"loss {last.loss:.3f} {last.tokens_per_second:,.0f} tokens/s"
            self._bar.update(self._task, completed=last.step, figures=figures)
        elif last.step in {1, steps} or lines > lines_before:
            # The average since the start includes evaluations and checkpoints.
            done = pl_module.progress.tokens - self._first_tokens
            tokens_left = pl_module.recipe.budget.total_tokens - pl_module.progress.tokens
            seconds_left = (time.monotonic() - self._began) / done * tokens_left
            self._console.print(
                f"step {last.step:>{len(str(steps))}}/{steps}  {last.step / steps:4.0%}  "
                f"loss {last.loss:6.3f}  lr {last.lr:.2e}  "
                f"{last.tokens_per_second:8,.0f} tokens/s  {seconds_left:5.0f} s left"
            )

    def print_line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def say_at_once(self, text: str) -> None:
        """Print a line from a signal handler, which may interrupt a print or an import."""
        if not self._console.quiet:
            terminal.say_at_once(text)

    def on_train_end(self, *_: Any) -> None:
        self.close()

    def on_exception(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


@dataclass(kw_only=True, eq=False)
class StopOnRequest(Callback):
    """Callback: Ctrl-C, SIGTERM or the file ``stop`` stops the run after a step."""

    file: Path
    say: Callable[[str], None]
    say_at_once: Callable[[str], None]
    _before: dict[int, Any] = field(default_factory=dict, init=False)
    _signalled: bool = field(default=False, init=False)

    def is_requested(self) -> bool:
        """Return whether a stop is requested. Retries of file system access end then."""
        return self._signalled or self.file.exists()

    def on_train_start(self, trainer: Trainer, pl_module: Pretraining) -> None:
        def request_stop(number: int, frame: FrameType | None) -> None:
            if pl_module.stop_requested and number == signal.SIGINT:
                raise KeyboardInterrupt
            pl_module.stop_requested = self._signalled = True
            name = signal.Signals(number).name
            self.say_at_once(f"{name}: saving after this step, then stopping")

        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, request_stop)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Pretraining, *_: Any) -> None:
        if pl_module.verdict:  # the step was rejected
            return
        if dist.get_rank() == 0 and not pl_module.stop_requested and self.file.exists():
            pl_module.stop_requested = True
            self.say(f"{self.file} exists: saving after the next step, then stopping")

    def on_train_end(self, *_: Any) -> None:
        self.close()

    def on_exception(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
