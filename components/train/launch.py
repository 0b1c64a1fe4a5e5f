"""Start the ranks of a run on this machine."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from components.child_process import python_environment
from components.config.recipe import Recipe
from components.errors import NO_MEMORY, RecipeError
from components.fault_tolerance.failures import FIRST_FAILURE, MENDABLE, recipe_error
from components.fault_tolerance.soft_failure import NotFiniteError, resume_hint, soft_failure
from components.run.folder import RunFolder
from components.run.records import FirstFailure
from components.run.writer_lock import SHARES, write_holder
from components.terminal import log_line
from components.train.ranks import allocator_variables

OPEN_FILES = 128  # two ranks of a miniature fail with 64 and train with 100


def check_trainable(recipe: Recipe) -> None:
    """Check that the recipe has one node and no scheduler, else raise RecipeError."""
    if recipe.cluster.nodes > 1 or recipe.cluster.scheduler != "none":
        problem = f"this machine is not {recipe.cluster.nodes} nodes of {recipe.cluster.name}"
        raise RecipeError("cluster", problem, "omit cluster= to train a miniature here")


def launch_training(recipe: Recipe, folder: RunFolder, lock: int) -> str:
    """Train in this process (one rank) or under torchrun; return the outcome.

    ``lock`` is the file descriptor of the run folder's lock. torchrun's agent and its ranks
    inherit it, so they hold the lock even if this process is killed. Raises RecipeError if the
    limit of open files is too low, or if a rank has a user error.
    """
    from components.distributed.devices import device_kind  # imports torch

    # Before torch allocates device memory, in this process or in the ranks.
    os.environ |= allocator_variables(device_kind(recipe.cluster.device), os.environ)
    if recipe.cluster.ranks == 1:
        return _train_here(folder, recipe)
    ranks, (limit, _) = recipe.cluster.ranks, resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < OPEN_FILES:  # sockets, shards and logs: training would fail later
        problem = f"{ranks} ranks, but the limit of open files per process is {limit}"
        raise RecipeError("cluster.ranks", problem, "raise the limit: ulimit -n 1024")
    variables = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)),
        # Seconds that torchrun gives ranks to end by themselves after one rank has failed.
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "10",
        SHARES: "1",
    }
    environment = python_environment(os.environ | variables)
    command = [
        *(sys.executable, "-m", "components.train.agent", str(folder.path / "ranks")),
        *(
            str(ranks),
            str(recipe.watchdog.restarts),
            "-m",
            "components.train",
            str(folder.path),
        ),
    ]
    with _asks_to_stop(folder):
        # A new session: Ctrl-C reaches only this process, which then asks the ranks to save.
        process = subprocess.Popen(
            command, env=environment, start_new_session=True, pass_fds=[lock]
        )
        try:
            write_holder(lock, process.pid)
            return how_it_ended(folder, process.wait())
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # partial files are ignored later
                process.wait()


def _train_here(folder: RunFolder, recipe: Recipe) -> str:
    from components.train.fit import fit_phase  # imports torch

    try:
        return fit_phase(folder, recipe)
    except NotFiniteError as error:
        log_line(f"{error}\n  {resume_hint(str(folder.path))}")
        return "failed"


def how_it_ended(folder: RunFolder, status: int) -> str:
    """Return ``finished``, ``stopped`` or ``failed`` for an agent's exit ``status``.

    Raises RecipeError for a rank's user error or a removed run folder, MemoryError if a rank
    ran out of memory.
    """
    if not folder.recipe.exists():
        problem = "was removed or moved while the run trained"
        raise RecipeError(str(folder.path), problem, "restart the run, or restore the folder")
    if (ended := folder.end_status) is not None or status == 0:
        return ended or "finished"
    if (folder.path / "ranks" / FIRST_FAILURE).exists():
        failure = folder.read_file(f"ranks/{FIRST_FAILURE}", FirstFailure)
        first = f"rank {failure.rank} failed first"
        if (error := recipe_error(failure.message)) is not None:
            log_line(first)
            raise error
        if (soft := soft_failure(failure.message)) is not None:
            log_line(f"{soft.text}\n  {resume_hint(str(folder.path))}")
            return "failed"
        where = f"  the ranks' logs are in {folder.path / 'ranks'}"
        if NO_MEMORY.search(failure.message):
            log_line(f"{first}\n{where}")
            raise MemoryError(failure.message)
        log_line(f"{failure.traceback}{first}: {failure.message}\n{where}")
    if status == MENDABLE:
        problem = "has no space left for the error that the first rank printed above"
        remedy = f"correct the error, then resume with resume={folder.path}"
        raise RecipeError(str(folder.path / "ranks"), problem, remedy)
    return "failed"


@contextmanager
def _asks_to_stop(folder: RunFolder) -> Iterator[None]:
    """Handle signals: the first makes the ranks save and stop, the second interrupts."""
    stop_requested = False

    def request_stop(number: int, frame: FrameType | None) -> None:
        nonlocal stop_requested
        if stop_requested:
            raise KeyboardInterrupt
        stop_requested = True
        with suppress(OSError):  # the folder was removed: the ranks end by themselves
            folder.stop.touch()

    # SIGINT, too: a shell script's background process starts with SIGINT ignored.
    handlers = {
        number: signal.signal(number, request_stop)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
