"""What is said to whoever interrupts a run, wherever that finds it."""

import io
import os
import signal
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from components.terminal import create_console
from components.train.callbacks.display import RunProgressBar


def test_a_signal_during_a_print_or_an_import_prints_its_line(capfd, monkeypatch):
    """Rich imports its emoji with the first colon that it prints: a handler may find half."""
    monkeypatch.setitem(sys.modules, "rich._emoji_codes", ModuleType("half"))
    display = RunProgressBar(create_console(stderr=True))
    before = signal.signal(signal.SIGUSR2, lambda *_: display.say_at_once("SIGUSR2: :saving:"))
    try:
        os.kill(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert capfd.readouterr().err == "SIGUSR2: :saving:\n"


def test_only_the_first_rank_prints(capfd: pytest.CaptureFixture[str]) -> None:
    display = RunProgressBar(create_console(stderr=True, quiet=True))
    display.say_at_once("SIGINT: saving")
    display.print_line("step 1")
    assert capfd.readouterr().err == ""


def test_the_bar_has_no_figures_before_the_first_step() -> None:
    out = io.StringIO()
    display = RunProgressBar(Console(file=out, force_terminal=True, width=200))
    recipe = SimpleNamespace(name="tiny", derived_numbers=SimpleNamespace(steps=2))
    trainer: Any = None
    module: Any = SimpleNamespace(
        verdict=None,
        recipe=recipe,
        progress=SimpleNamespace(tokens=0, step=0),
        last=SimpleNamespace(step=1, loss=2.5, tokens_per_second=7.0),
    )
    display.on_train_start(trainer, module)
    assert "before the first step" in out.getvalue()
    display.on_train_batch_end(trainer, module)
    display.close()
    assert "loss 2.500 7 tokens/s" in out.getvalue()
    assert "nan" not in out.getvalue()
