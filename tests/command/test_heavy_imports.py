"""Importing an action loads neither torch nor the hub: a login node waits for neither.

`evaluate` keeps the hub offline before anything has read that; a study that is planned or
searched needs no plotly, which draws the page of a listed one alone.
"""

import json
import subprocess
import sys
from pkgutil import iter_modules

from command import actions
from command.actions import jobs
from command.arguments import ROOT

COMPUTING = {
    "export",
    "merge",
    "parity",
    "preflight",
}  # these do nothing that could go without torch
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
    *(
        "command.main",
        "command.dispatch",
        "command.evaluate.queue",
        "command.study.request",
        "command.study.listed",
        "command.study.runs",
    ),
    *(
        "cluster.begin",
        "cluster.end",
        "cluster.job",
        "cluster.records",
        "components.train.launch",
    ),
]


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


def test_the_signals_are_heard_before_the_rest_is_imported() -> None:
    loaded = newly_loaded(["command.entry"])["command.entry"]
    ours = {name for name in loaded if name.startswith(("command", "components"))}
    assert ours == {"command", "command.entry"}
