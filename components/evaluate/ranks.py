"""Evaluation ranks: one process per device of this machine, started by torchrun's agent."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from components.child_process import python_environment
from components.data.files import write_atomically
from components.distributed.devices import count_devices, device_type
from components.errors import RecipeError
from components.evaluate.text_loss import ResultTree
from components.fault_tolerance.failures import FIRST_FAILURE, recipe_error


def ranks_here(ranks: int | None) -> int:
    """Return ``ranks``, at most one per device; by default one per device (one on a CPU)."""
    kind = device_type("auto")
    if kind == "cpu":
        return ranks or 1
    devices = count_devices(kind)
    if ranks is not None and ranks > devices:
        problem = f"{ranks}, but torch sees {devices} devices here"
        raise RecipeError("ranks", problem, "remove it to start one rank per device")
    return ranks or devices


def ask_ranks(module: str, work: str, ranks: int) -> ResultTree:
    """Run ``module`` on ``ranks`` ranks with ``work`` and return the first rank's answer.

    Raises:
        ChildProcessError: a rank failed with an error other than RecipeError.
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
        # Standard output is for results, so the ranks print to standard error.
        status = subprocess.run(command, env=environment, stdout=sys.stderr).returncode
        if status:
            raise failure_of(logs / FIRST_FAILURE, status)
        result: ResultTree = json.loads(answer.read_bytes())
        return result


def failure_of(file: Path, status: int) -> Exception:
    """Rebuild the exception of the rank that failed first."""
    if not file.exists():
        return ChildProcessError(f"the evaluation's ranks exited with status {status}")
    failure = json.loads(file.read_bytes())
    message = str(failure["message"])
    fallback = ChildProcessError(f"rank {failure['rank']}: {message}\n{failure['traceback']}")
    return recipe_error(message) or fallback


def be_a_rank(ask: Callable[[bytes], ResultTree]) -> None:
    """Run ``ask`` as one rank. The agent gets exceptions; rank 0 writes the answer."""

    def write_answer(file: Path, answer: Path) -> None:
        result = ask(file.read_bytes())
        if os.environ["RANK"] == "0":
            write_atomically(answer, json.dumps(result))

    record(write_answer)(Path(sys.argv[1]), Path(sys.argv[2]))
