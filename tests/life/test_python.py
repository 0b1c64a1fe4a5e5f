"""A run from Python: the script of the page, callbacks of one's own, options of the trainer."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback

from command.begin_run import begin_run
from components.train.fit import build_run
from tests.life.conftest import ROOT, TINY, act, column, entries, environment, tiny

PAGE = (ROOT / "docs/python.md").read_text("utf-8")
SCRIPT, CALLBACK, NODE = re.findall(r"^```(?:python|yaml)\n(.*?)^```$", PAGE, re.M | re.S)
ROOMS = (
    *("command", "cluster", "components", "data_prep"),
    *("conf", "recipes", "corpora", "requirements"),
)
WORDS = '"recipe=teuken7b", "budget.total_tokens=16_384"'  # minutes of training
NAME = "components/train/callbacks/weight_norm.py"


class Stop(Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        pl_module.stop_requested = pl_module.progress.step == 13


@pytest.mark.long
def test_a_run_resumed_from_python_has_the_same_losses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    callbacks: list[Callback] = [Stop()]
    for name, own in (("whole", []), ("stopped", callbacks), ("stopped", [])):
        run = begin_run(Path(name), *TINY)
        module, data, trainer = build_run(run)
        trainer.callbacks += own
        trainer.fit(module, datamodule=data, ckpt_path=run)
    losses = {one["step"]: one["loss"] for one in entries(Path("stopped"), "step")}
    assert [*losses.values()] == column(Path("whole"), "loss")
    assert len(losses) == 24
    assert len(entries(Path("stopped"), "resume")) == 1
    ended = json.loads(Path("stopped/results.json").read_text())
    assert ended["status"] == "finished"


@pytest.mark.long
def test_script_and_callback_of_the_page_work_unchanged(tmp_path):
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / room, symlinks=True)
    assert NAME in CALLBACK
    assert "conf/callbacks/weight_norm.yaml" in NODE
    (tmp_path / NAME).write_text(f'"""A callback."""\n\n{CALLBACK}')
    (tmp_path / "conf/callbacks/weight_norm.yaml").write_text(NODE)
    words = tiny("callbacks=weight_norm", "~logger.tensorboard", "budget.total_tokens=2_048")
    assert SCRIPT.count(WORDS) == 1
    subprocess.run(
        [sys.executable, "-c", SCRIPT.replace(WORDS, f"*{words!r}")],
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": str(tmp_path)},
        check=True,
    )
    run = tmp_path / "runs/python"
    logged = {one["step"]: one["largest_norm"] for one in entries(run, "logged")}
    assert list(logged) == [2, 3, 4]
    assert logged[3] == logged[2] != logged[4]  # Lightning repeats what was logged last
    assert not (run / "tensorboard").exists()
    assert json.loads((run / "results.json").read_text())["status"] == "finished"


@pytest.mark.long
def test_a_trial_run_takes_two_steps_and_saves_nothing(home: Path) -> None:
    words = ("trainer.fast_dev_run=2", "trainer.limit_val_batches=1")
    assert act(home, *TINY, *words, "run=run") == 3
    assert len(column(home / "run", "loss")) == 2
    assert list((home / "run" / "checkpoints").iterdir()) == []
