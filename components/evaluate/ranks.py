"""Ranks of an evaluation: a process for each device of this machine, under torchrun's agent."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from components.child_process import python_environment
from components.data.files import replace_atomically
from components.distributed.devices import count_devices, device_type
from components.errors import RecipeError
from components.evaluate.text_loss import Tree
from components.fault_tolerance.failures import FIRST_FAILURE, recipe_error


def ranks_here(ranks: int | None) -> int:
    """Count the ranks: those asked for, else one a device; a CPU is one.

    Raises:
        RecipeError: there are fewer devices than ranks.
    """
    kind = device_type("auto")
    if kind == "cpu":
        return ranks or 1
    devices = count_devices(kind)
    if ranks is not None and ranks > devices:
        problem = f"{ranks}, but torch sees {devices} devices here"
        raise RecipeError("ranks", problem, "leave it out for a rank on each device")
    return ranks or devices


def ask_ranks(module: str, work: str, ranks: int) -> Tree:
    """Start ``module`` as so many ranks, give each the ``work``, return the first one's answer.

    Raises:
        RecipeError: what one of them met and the user can mend.
        ChildProcessError: one of them failed otherwise.
    """
    with tempfile.TemporaryDirectory() as aside:
        file, answer, logs = (Path(aside) / name for name in ("work", "answer", "logs"))
        file.write_text(work, "utf-8")
        command = [
            *(sys.executable, "-m", "components.train.agent", str(logs), str(ranks), "0"),
            *("-m", module, str(file), str(answer)),
        ]
        threads = str(max(1, (os.cpu_count() or 1) // ranks))
        environment = python_environment(os.environ | {"OMP_NUM_THREADS": threads})
        # What the first rank says is no result, which standard output is for.
        status = subprocess.run(command, env=environment, stdout=sys.stderr).returncode
        if status:
            raise failure_of(logs / FIRST_FAILURE, status)
        found: Tree = json.loads(answer.read_bytes())
        return found


def failure_of(file: Path, status: int) -> Exception:
    """Make again what the rank raised that failed first."""
    if not file.exists():
        return ChildProcessError(f"the ranks of an evaluation ended with status {status}")
    failure = json.loads(file.read_bytes())
    message = str(failure["message"])
    told = ChildProcessError(f"rank {failure['rank']}: {message}\n{failure['traceback']}")
    return recipe_error(message) or told


def be_a_rank(ask: Callable[[bytes], Tree]) -> None:
    """Answer as one of the ranks: what is raised goes to the agent, the first writes."""

    def answer(file: Path, answer: Path) -> None:
        found = ask(file.read_bytes())
        if os.environ["RANK"] == "0":
            with replace_atomically(answer) as stream:
                stream.write(json.dumps(found).encode())

    record(answer)(Path(sys.argv[1]), Path(sys.argv[2]))
