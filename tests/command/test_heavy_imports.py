"""Importing an action loads neither torch nor the hub: a login node waits for neither.

`evaluate` keeps the hub offline before anything has read that; a study that is planned or
searched needs no plotly, which draws the page of a listed one alone.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from pkgutil import iter_modules

from command import actions
from command.actions import jobs
from command.arguments import ROOT

# These do nothing that could go without torch.
COMPUTING = {"export", "merge", "parity", "preflight"}
HEAVY = {
    "torch",
    "transformers",
    "huggingface_hub",
    "datasets",
    "lightning",
    "plotly",
    "optuna",
}
LIGHT = [
    *(f"command.actions.{one.name}" for one in iter_modules(actions.__path__)),
    *(f"command.actions.jobs.{one.name}" for one in iter_modules(jobs.__path__)),
    *(f"command.{name}" for name in ("main", "dispatch", "evaluate.queue")),
    *(f"command.study.{name}" for name in ("request", "listed", "runs")),
    *(f"cluster.{name}" for name in ("begin", "end", "job", "records")),
    "components.train.launch",
]
# Commands that answer at once; locks are written by way of numpy.
AT_ONCE = [
    ["--shell-completion", "query=bash"],
    [],
    ["recipe=teuken7b", "scale=full", "action=show"],
    ["recipe=mula1b", "cluster=aurora", "action=render"],
    ["recipe=mula1b", "action=pack", "file=./made.lock.yaml"],
    ["action=verify", "file=./made.lock.yaml"],
    ["action=diff", "a=mula1b", "b=made.lock.yaml"],
]
ANSWER = """
import json, sys
from command.main import main
for words in json.loads(sys.argv[1]):
    assert main(words) == 0, words
    is_lock = any("lock" in word for word in words)
    assert not {"torch", "lightning", "torch" if is_lock else "numpy"} & {*sys.modules}, words
"""


def newly_loaded(modules: list[str]) -> dict[str, set[str]]:
    """Import modules one after another in a new process; tell what each of them brought in."""
    code = (
        "import importlib, json, sys\n"
        "for name in sys.argv[1:]:\n"
        "    before = {*sys.modules}\n"
        "    importlib.import_module(name)\n"
        "    print(json.dumps([name, sorted({*sys.modules} - before)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name: {*new} for name, new in map(json.loads, done.stdout.splitlines())}


def test_importing_an_action_loads_nothing_heavy() -> None:
    light = [one for one in LIGHT if one.split(".")[-1] not in COMPUTING]
    heavy = {name: new & HEAVY for name, new in newly_loaded(light).items()}
    assert {name: new for name, new in heavy.items() if new} == {}
    loaded = newly_loaded(["command.entry"])["command.entry"]
    ours = {name for name in loaded if name.startswith(("command", "components"))}
    assert ours == {"command", "command.entry"}


def test_quick_answers_import_no_torch(tmp_path: Path) -> None:
    """One process after another command, as what is loaded stays loaded."""
    places = {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ANSWER, json.dumps(AT_ONCE)],
        cwd=tmp_path,
        env=os.environ | places | {"COMP_LINE": "python run.py recipe=teu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
