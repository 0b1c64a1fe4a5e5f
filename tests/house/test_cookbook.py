"""The tasks of the cookbook: their files and commands, in a copy of this tree."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from command.arguments import ROOT
from tests.house.test_commands_of_pages import FENCE, copy_tree, texts_at_hand

PAGE = (ROOT / "docs/cookbook.md").read_text("utf-8")
TASKS = re.findall(r"^## \d+\. (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
NAMED = re.compile(r"# (~?[\w/.]+\.(?:yaml|py))\n")
# Eight steps instead of minutes of training.
SHORTER = {
    r"total_tokens: [\d_]+": "total_tokens: 4_096",
    r"warmup_tokens: [\d_]+": "warmup_tokens: 1_024",
    r"every_tokens: [\d_]+": "every_tokens: 2_048",
}
TRAINS_LONG = "python run.py recipe=mine run=runs/long"


class Clone:
    """A copy of this tree, in which commands run as on the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "clone"
        self.folder.mkdir()
        copy_tree(self.folder)
        self.home = folder / "config"
        places = {"XDG_CONFIG_HOME": str(self.home), "XDG_STATE_HOME": str(folder / "state")}
        path = f"{self.folder / '.venv' / 'bin'}:{os.environ['PATH']}"
        offline = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
        self.environment = os.environ | places | offline | {"PATH": path}

    def write(self, text: str) -> None:
        """Write a file of the page. Its first line has its name."""
        named = NAMED.match(text)
        assert named, text
        name = named[1].removeprefix("~/.config/")
        path = (self.home if "~" in named[1] else self.folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def run(self, line: str) -> str:
        """Run a line and return its output."""
        done = subprocess.run(
            ["bash", "-ec", line],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        self._shorten()
        return done.stdout

    def stop(self, line: str, then: str) -> None:
        """Run a line that trains, and the next line as soon as there are steps."""
        run = self.folder / "runs/long"
        with subprocess.Popen(
            shell_of(line), cwd=self.folder, env=self.environment, stderr=subprocess.DEVNULL
        ) as training:
            while '"step"' not in read(run / "metrics.jsonl") and training.poll() is None:
                time.sleep(0.2)
            self.run(then)
        assert training.returncode == 3

    def _shorten(self) -> None:
        for name in ("mine", "more"):
            recipe = self.folder / "recipes" / f"{name}.yaml"
            if recipe.exists():
                text = recipe.read_text("utf-8")
                for pattern, shorter in SHORTER.items():
                    text = re.sub(rf"\b{pattern}", shorter, text)
                recipe.write_text(text, "utf-8")


def shell_of(line: str) -> list[str]:
    program, *words = line.split()
    assert program == "python"
    return [sys.executable, *words, "budget.total_tokens=102_400"]


def read(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


def shows(*texts: str) -> Callable[[Clone, list[str]], None]:
    """Expect in the outputs of the commands, one after another, these texts."""

    def check(_: Clone, outputs: list[str]) -> None:
        for text, output in zip(texts, outputs, strict=True):
            assert text in output

    return check


def leaves(*files: str) -> Callable[[Clone, list[str]], None]:
    """Expect these files, which are not empty."""

    def check(clone: Clone, _: list[str]) -> None:
        for file in files:
            assert (clone.folder / file).stat().st_size > 0

    return check


def has_own_text(clone: Clone, outputs: list[str]) -> None:
    leaves("recipes/mine.yaml", "runs/mine/report.html")(clone, outputs)
    assert "fits" in outputs[2]
    assert "#SBATCH --account=YOUR_PROJECT" in outputs[3]


def has_losses_of_two_ranks(clone: Clone, outputs: list[str]) -> None:
    assert "data 2 = 2 ranks" in outputs[1]
    one, two = (losses(clone.folder / "runs" / name) for name in ("mine", "two"))
    assert two == pytest.approx(one, rel=1e-3)


def is_resumed(clone: Clone, outputs: list[str]) -> None:
    assert "--array=1-4%1" in outputs[0]
    assert "stopped" in outputs[-2]
    results = json.loads(read(clone.folder / "runs/long/results.json"))
    assert results["status"] == "finished"


def starts_from_the_checkpoint(clone: Clone, _: list[str]) -> None:
    scratch, more = (losses(clone.folder / "runs" / name) for name in ("mine", "more"))
    assert more[0] < scratch[0] - 0.2


def is_rendered_for_two_nodes(_: Clone, outputs: list[str]) -> None:
    assert "fits" in outputs[0]
    for directive in ("--nodes=2", "--partition=gpu", "--gres=gpu:4"):
        assert f"#SBATCH {directive}" in outputs[1]
    assert "module load CUDA/12 Python/3.12" in outputs[1]


def logs_the_time(clone: Clone, _: list[str]) -> None:
    assert '"step_time"' in read(clone.folder / "runs/timed/metrics.jsonl")


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in read(run / "metrics.jsonl").splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "step"]


# What each task leads to, in the order of the page: later tasks use the run of the first one.
OUTCOMES = (
    has_own_text,
    shows("WarmupStableDecay", "schedule.decay_tokens"),
    shows("mlp: ClampedMLP", "holds"),
    has_losses_of_two_ranks,
    leaves("runs/mine/wandb"),
    leaves("mine_hf/config.json", "mine_hf/model.safetensors"),
    starts_from_the_checkpoint,
    leaves("runs/rates/sweep.html"),
    is_resumed,
    shows("mine.recipe.yaml", "mine.lock.yaml", "same mathematics, same layout, same machine"),
    is_rendered_for_two_nodes,
    logs_the_time,
)


def test_each_task_has_a_goal_and_commands() -> None:
    assert len(TASKS) == len(OUTCOMES) == 12
    for title, text in TASKS:
        assert text.lstrip().startswith("Goal: "), title
        assert "\npython run.py " in text, title


@pytest.mark.long
@pytest.mark.apart  # `make pages` has it
@pytest.mark.timeout(3_600)
def test_the_tasks_do_what_they_say(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    clone.run(texts_at_hand())
    for (_, text), leads_to_its_outcome in zip(TASKS, OUTCOMES, strict=True):
        outputs = []
        blocks = FENCE.findall(text)
        for _, shown in (block for block in blocks if block[0]):
            clone.write(shown)
        lines = [line for kind, shown in blocks if not kind for line in shown.splitlines()]
        while lines:
            line = lines.pop(0)
            if line == TRAINS_LONG:
                clone.stop(line, lines.pop(0))
            else:
                outputs.append(clone.run(line))
        leads_to_its_outcome(clone, outputs)
