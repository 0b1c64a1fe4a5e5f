"""A run from Python: the script of the page, callbacks of one's own, options of the trainer."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.life.conftest import ROOT, TINY, environment

PAGE = (ROOT / "docs/python.md").read_text("utf-8")
SCRIPT, CALLBACK, NODE = re.findall(r"^```(?:python|yaml)\n(.*?)^```$", PAGE, re.M | re.S)
ROOMS = (
    "command",
    "cluster",
    "components",
    "data_prep",
    "conf",
    "recipes",
    "corpora",
    "requirements",
)
WORDS = '"recipe=teuken7b", "budget.total_tokens=16_384"'  # minutes of training
NAME = "components/train/callbacks/weight_norm.py"
STOPPED = f"""
from pathlib import Path
from lightning.pytorch import Callback
from command.begin_run import begin_run
from components.train.fit import build_run

class Stop(Callback):
    def on_train_batch_end(self, trainer, pl_module, *_):
        pl_module.stop_requested = pl_module.progress.step == 13

for name, callbacks in (("whole", []), ("stopped", [Stop()]), ("stopped", [])):
    run = begin_run(Path(name), *{TINY!r})
    module, data, trainer = build_run(run)
    trainer.callbacks += callbacks
    trainer.fit(module, datamodule=data, ckpt_path=run)
"""


def python(code: str, folder: Path, root: Path = ROOT) -> None:
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment() | {"PYTHONPATH": str(root)},
        check=True,
    )


def read(run: Path, kind: str) -> list[dict[str, object]]:
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def losses(run: Path) -> dict[object, object]:
    return {line["step"]: line["loss"] for line in read(run, "step")}


@pytest.mark.long
def test_a_run_stops_and_resumes_in_one_process_with_the_losses_of_a_whole_run(
    tmp_path: Path,
) -> None:
    python(STOPPED, tmp_path)
    assert len(losses(tmp_path / "whole")) == 24
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")
    ended = json.loads((tmp_path / "stopped" / "results.json").read_text())
    assert ended["status"] == "finished"


def test_the_script_and_the_callback_of_the_page_work_as_they_are_written(
    tmp_path: Path,
) -> None:
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / room, symlinks=True)
    assert NAME in CALLBACK
    assert "conf/callbacks/weight_norm.yaml" in NODE
    (tmp_path / NAME).write_text(f'"""A callback."""\n\n{CALLBACK}')
    (tmp_path / "conf/callbacks/weight_norm.yaml").write_text(NODE)
    words = [word for word in TINY if not word.startswith("budget.total_tokens")]
    words += ["callbacks=weight_norm", "~logger.tensorboard", "budget.total_tokens=2_048"]
    assert SCRIPT.count(WORDS) == 1
    python(SCRIPT.replace(WORDS, f"*{words!r}"), tmp_path, tmp_path)
    run = tmp_path / "runs/python"
    logged = {one["step"]: one["largest_norm"] for one in read(run, "logged")}
    assert list(logged) == [2, 3, 4]
    assert logged[3] == logged[2] != logged[4]  # Lightning repeats what was logged last
    assert not (run / "tensorboard").exists()
    assert json.loads((run / "results.json").read_text())["status"] == "finished"


@pytest.mark.long
def test_a_try_takes_a_few_steps_and_saves_nothing(tmp_path: Path) -> None:
    words = [*TINY, "trainer.fast_dev_run=2", "trainer.limit_val_batches=1", "run=run"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *words], cwd=tmp_path, env=environment()
    )
    assert done.returncode == 3
    assert len(losses(tmp_path / "run")) == 2
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
