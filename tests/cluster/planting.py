"""Faults on one node alone: what looks at that node finds other code first."""

import sys
from pathlib import Path

WRAPPER = """#!/bin/bash
if [[ "${variable}" == {node} && "$2" == components.preflight ]]; then
  export PYTHONPATH={planted}:$PYTHONPATH
fi
{on_ranks}
exec {python} "$@"
"""
# Clocks differ in what Python reads alone: this host has one.
CLOCK = "import time\nreal = time.time\ntime.time = lambda: real() + 100\n"
# While a node multiplies, two other processes have its core, and it has the last word there:
# Linux gives weights of 15 at nice 19 and of 1,024 at 0, so that it gets 0.7 % of the core.
# The module is changed as it is imported: a thread that waits for it may come too late.
SLOW = """
import importlib.util, os, subprocess, sys

def crowded(*what):
    me, cores = os.getpid(), os.sched_getaffinity(0)
    busy = f"import os\\nwhile os.getppid() == {me}: sum(range(100_000))"
    others = [subprocess.Popen([sys.executable, "-S", "-c", busy]) for _ in range(2)]
    for process in (me, *(other.pid for other in others)):
        os.sched_setaffinity(process, {max(cores)})
    os.setpriority(os.PRIO_PROCESS, me, 19)
    try:
        return real(*what)
    finally:
        os.setpriority(os.PRIO_PROCESS, me, 0)
        os.sched_setaffinity(me, cores)
        for other in others:
            other.kill()
            other.wait()

class Planter:
    def find_spec(self, name, path=None, target=None):
        if name != "components.preflight.devices":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def plant(module):
            global real
            run(module)
            real, module.product_teraflops = module.product_teraflops, crowded

        spec.loader.exec_module = plant
        return spec

sys.meta_path.insert(0, Planter())
"""


def plant(
    venv: Path, variable: str, node: str, file: str, text: str, *, before_ranks: str = ""
) -> str:
    """Make an environment in which Python finds ``file`` first, on one node alone.

    ``variable`` is the one by which a process knows on which node it is; ``node`` may be a
    pattern of bash. A shell reads ``before_ranks`` where a rank starts, with the run's folder
    in ``$3``.
    """
    planted, programs = venv / "planted", venv / "bin"
    (planted / file).parent.mkdir(parents=True)
    (planted / file).write_text(text)
    programs.mkdir(parents=True, exist_ok=True)
    (programs / "activate").write_text(f'PATH="{programs}:$PATH"\n')
    (programs / "python").write_text(
        WRAPPER.format(
            variable=variable,
            node=node,
            planted=planted,
            on_ranks=f'[[ "$2" != components.train ]] || {before_ranks or ":"}',
            python=sys.executable,
        )
    )
    (programs / "python").chmod(0o755)
    return f"site.venv={venv}"
