"""Start ranks on this machine under torchrun's agent; keep what failed first.

A process of its own, ``python -m components.train.agent LOGS RANKS RESTARTS PROGRAM...``, since
the agent installs signal handlers. PROGRAM is ``-m MODULE WORDS`` or ``FILE WORDS``. Rank 0
shares this process's terminal; what the others say, and the errors of all, go below ``LOGS``.
If a rank fails, all start again, up to RESTARTS times.
"""

import json
import logging
import os
import runpy
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import set_forkserver_preload
from pathlib import Path
from uuid import uuid4

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from components.fault_tolerance import failures
from components.terminal import say

LONGEST_SOCKET_FOLDER = 70  # a socket's path has 107 bytes, multiprocessing adds 33
LOOKED_WITHIN_SECONDS = 2.0  # torchrun notes whole seconds, of the moment when it looked


def run_program(program: Sequence[str]) -> None:
    """Be one rank; what the program raises is written to torchrun's error file."""
    is_module = program[0] == "-m"
    sys.argv = list(program[is_module:])
    try:
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        # The agent waits for what a rank returns: one that ends itself would never be done.
        if ended.code:
            raise


def run_ranks(logs: Path, ranks: int, restarts: int, program: Sequence[str]) -> int:
    """Run one process a rank and return an exit status; the first failure is left in a file."""
    logs.mkdir(exist_ok=True)
    (logs / failures.FIRST_FAILURE).unlink(missing_ok=True)
    failures.forget_errors(logs)
    _remove_old_logs(logs)
    logging.disable(logging.ERROR)  # the agent would say again what the file says
    redirects = dict.fromkeys(range(1, ranks), Std.ALL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid4().hex[:8],
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=restarts,
        local_addr="localhost",
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=redirects),
    )
    # Ranks that start again would read the addresses of those before: the agent's own store,
    # which they share unless told otherwise, is made once (torch 2.13, dynamic_rendezvous.py).
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if len(tempfile.gettempdir()) > LONGEST_SOCKET_FOLDER:
        tempfile.tempdir = "/tmp"  # short on every Linux
    # One process imports the slow libraries, and every rank is a fork of it.
    set_forkserver_preload(["components.train.fit"])
    try:
        elastic_launch(config, run_program)(program)
    except ChildFailedError as error:
        if logs.is_dir():  # else the run's folder was removed, which `launch` reports
            _write_first_failure(logs, *first_failure({**error.failures, **_raised(logs)}))
        statuses = {failure.exitcode for failure in error.failures.values()}
        return failures.MENDABLE if failures.MENDABLE in statuses else 1
    except SignalException:  # the second Ctrl-C: the agent has ended the ranks
        return 1
    return 0


def _remove_old_logs(logs: Path) -> None:
    """Remove torchrun's folders of earlier starts, but for the newest."""
    for folder in sorted(logs.glob("*_*/"), key=lambda one: one.stat().st_mtime)[:-1]:
        shutil.rmtree(folder, ignore_errors=True)


def _write_first_failure(logs: Path, rank: int, failure: ProcessFailure) -> None:
    """Write down the first failure, whole or not at all: a full disk may be what it tells."""
    beside = logs / f".{failures.FIRST_FAILURE}"
    try:
        text = json.dumps({"rank": rank, **describe(failure)}, indent=1)
        beside.write_text(f"{text}\n", "utf-8")
        beside.replace(logs / failures.FIRST_FAILURE)
    except OSError as error:
        say(f"{logs / failures.FIRST_FAILURE}: cannot be written: {error.strerror}")


def _raised(logs: Path) -> dict[int, ProcessFailure]:
    """Read the error files of all ranks: torchrun speaks of the rank that it saw end first.

    They are where torchrun told the ranks, or where ranks that train have theirs in any job.
    """
    attempts = sorted(logs.glob("*_*/attempt_*"), key=lambda folder: folder.stat().st_mtime)
    if not attempts:  # removed since then
        return {}
    newest = attempts[-1]
    files = {int(file.parent.name): file for file in newest.glob("*/error.json")}
    for error in failures.read_errors(logs):
        if error.at >= newest.stat().st_mtime_ns:
            files[error.rank] = failures.error_file(logs, error.rank)
    return {rank: _failure(rank, file) for rank, file in files.items() if file.stat().st_size}


def _failure(rank: int, file: Path) -> ProcessFailure:
    """Describe a rank by its error file: torch's constructor cannot read one that was cut."""
    failure = ProcessFailure(local_rank=rank, pid=0, exitcode=1, error_file="")
    failure.error_file = str(file)
    return failure


def first_failure(failed: Mapping[int, ProcessFailure]) -> tuple[int, ProcessFailure]:
    """Find the rank that brought the others down.

    The others fail too within milliseconds, so torchrun's own choice, by whole seconds, may
    name one of them. An error file is written when the error is raised. A rank that was killed
    leaves none; who only waited for another and what the agent itself ended come last.
    """

    def moment(item: tuple[int, ProcessFailure]) -> tuple[bool, float]:
        failure = item[1]
        file = Path(failure.error_file)
        if file.is_file():
            return failures.WAITING in failures.message_of(file), file.stat().st_mtime
        return failure.signal_name() == "SIGTERM", failure.timestamp - LOOKED_WITHIN_SECONDS

    return min(failed.items(), key=moment)


def describe(failure: ProcessFailure) -> dict[str, str]:
    """Return ``message`` and ``traceback``, which is empty if the rank could leave none."""
    file, status = Path(failure.error_file), failure.exitcode
    if file.is_file():
        message, traceback = failures.read_error(file)
        return {"message": message, "traceback": traceback}
    end = f"by {failure.signal_name()}" if status < 0 else f"with exit status {status}"
    return {"message": f"ended {end}", "traceback": ""}


if __name__ == "__main__":
    sys.exit(run_ranks(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
