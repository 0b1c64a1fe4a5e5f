"""Agent process: start ranks on this machine under torchrun, and record the first failure.

``python -m components.train.agent LOGS RANKS RESTARTS PROGRAM...`` is a separate process, since
torchrun installs signal handlers. PROGRAM is ``-m MODULE WORDS`` or ``FILE WORDS``. Rank 0 uses
this process's terminal. The output of the other ranks, and the errors of all ranks, are in
``LOGS``. If a rank fails, all ranks restart, up to RESTARTS times.
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
from components.terminal import log_line

LONGEST_SOCKET_FOLDER = 70  # a socket's path has at most 107 bytes, multiprocessing adds 33
LOOKED_WITHIN_SECONDS = 2.0  # torchrun's timestamps are the time of its poll, in full seconds


def run_program(program: Sequence[str]) -> None:
    """Run the program as one rank. torchrun writes its exception to the error file."""
    is_module = program[0] == "-m"
    sys.argv = list(program[is_module:])
    try:
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        # The agent waits for the return value: after an exit it would wait forever.
        if ended.code:
            raise


def run_ranks(logs: Path, ranks: int, restarts: int, program: Sequence[str]) -> int:
    """Run one process per rank, and return an exit status. A file gets the first failure."""
    logs.mkdir(exist_ok=True)
    (logs / failures.FIRST_FAILURE).unlink(missing_ok=True)
    failures.forget_errors(logs)
    _remove_old_logs(logs)
    logging.disable(logging.ERROR)  # the agent would repeat the contents of the file
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
    # By default ranks share the agent's store, which is created once (torch 2.13,
    # dynamic_rendezvous.py). Restarted ranks would read the addresses of the previous ranks.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if len(tempfile.gettempdir()) > LONGEST_SOCKET_FOLDER:
        tempfile.tempdir = "/tmp"  # short on every Linux
    # The fork server imports the slow libraries once, and every rank is a fork of it.
    set_forkserver_preload(["components.train.fit"])
    try:
        elastic_launch(config, run_program)(program)
    except ChildFailedError as error:
        if logs.is_dir():  # otherwise the run's folder was removed, which `launch` reports
            _write_first_failure(logs, *first_failure({**error.failures, **_raised(logs)}))
        statuses = {failure.exitcode for failure in error.failures.values()}
        return failures.MENDABLE if failures.MENDABLE in statuses else 1
    except SignalException:  # the second Ctrl-C: the agent has ended the ranks
        return 1
    return 0


def _remove_old_logs(logs: Path) -> None:
    """Remove torchrun's log folders of earlier starts, except the newest."""
    for folder in sorted(logs.glob("*_*/"), key=lambda folder: folder.stat().st_mtime)[:-1]:
        shutil.rmtree(folder, ignore_errors=True)


def _write_first_failure(logs: Path, rank: int, failure: ProcessFailure) -> None:
    """Write the first failure to a file atomically: the failure may be a full disk."""
    temporary = logs / f".{failures.FIRST_FAILURE}"
    try:
        text = json.dumps({"rank": rank, **describe_failure(failure)}, indent=1)
        temporary.write_text(f"{text}\n", "utf-8")
        temporary.replace(logs / failures.FIRST_FAILURE)
    except OSError as error:
        log_line(f"{logs / failures.FIRST_FAILURE}: cannot be written: {error.strerror}")


def _raised(logs: Path) -> dict[int, ProcessFailure]:
    """Read the error files of all ranks. torchrun reports only the rank that it saw end first.

    The files are at torchrun's paths; training ranks write to `failures.error_file`.
    """
    attempts = sorted(logs.glob("*_*/attempt_*"), key=lambda folder: folder.stat().st_mtime)
    if not attempts:  # removed in the meantime
        return {}
    newest = attempts[-1]
    files = {int(file.parent.name): file for file in newest.glob("*/error.json")}
    for error in failures.read_errors(logs):
        if error.at >= newest.stat().st_mtime_ns:
            files[error.rank] = failures.error_file(logs, error.rank)
    return {rank: _failure(rank, file) for rank, file in files.items() if file.stat().st_size}


def _failure(rank: int, file: Path) -> ProcessFailure:
    """Return a ProcessFailure for an error file: its constructor fails on truncated files."""
    failure = ProcessFailure(local_rank=rank, pid=0, exitcode=1, error_file="")
    failure.error_file = str(file)
    return failure


def first_failure(failed: Mapping[int, ProcessFailure]) -> tuple[int, ProcessFailure]:
    """Return the rank that failed first and its failure.

    torchrun's timestamps are full seconds, but the other ranks fail within milliseconds. An
    error file has the time of the error. A killed rank has no error file. Ranks that only
    waited for others, and ranks that the agent ended, come last.
    """

    def failure_order(item: tuple[int, ProcessFailure]) -> tuple[bool, float]:
        failure = item[1]
        file = Path(failure.error_file)
        if file.is_file():
            return failures.WAITING in failures.read_error(file)[0], file.stat().st_mtime
        return failure.signal_name() == "SIGTERM", failure.timestamp - LOOKED_WITHIN_SECONDS

    return min(failed.items(), key=failure_order)


def describe_failure(failure: ProcessFailure) -> dict[str, str]:
    """Return ``message`` and ``traceback`` of a failure. The traceback may be empty."""
    file, status = Path(failure.error_file), failure.exitcode
    if file.is_file():
        message, traceback = failures.read_error(file)
        return {"message": message, "traceback": traceback}
    end = f"by {failure.signal_name()}" if status < 0 else f"with exit status {status}"
    return {"message": f"ended {end}", "traceback": ""}


if __name__ == "__main__":
    sys.exit(run_ranks(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
