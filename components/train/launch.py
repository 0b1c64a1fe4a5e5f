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
from components.fault_tolerance.soft_failure import NotFiniteError, soft_failure, way_on
from components.run.folder import RunFolder
from components.run.records import FirstFailure
from components.run.writer_lock import SHARES, sign
from components.terminal import say
from components.train.ranks import allocator_variables

OPEN_FILES = 128  # two ranks of a miniature fail with 64 and train with 100


def check_trainable(recipe: Recipe) -> None:
    """Refuse nodes of a cluster, before anything is written.

    Raises:
        RecipeError: there are some.
    """
    if recipe.cluster.nodes > 1 or recipe.cluster.scheduler != "none":
        problem = f"{recipe.cluster.nodes} nodes of {recipe.cluster.name} are not this machine"
        raise RecipeError("cluster", problem, "leave cluster= out to train a miniature here")


def launch(recipe: Recipe, folder: RunFolder, lock: int) -> str:
    """Train in this process if there is one rank, else under torchrun; return how it ended.

    ``lock`` holds the run folder: torchrun's agent inherits it, and its ranks share it, so they
    hold the folder even if this process is killed.

    Raises:
        RecipeError: a process may open too few files, or a rank met what a user has to mend.
    """
    from components.distributed.devices import device_kind  # imports torch

    # Before torch gives any memory of a device, in this process or in those of the ranks.
    os.environ |= allocator_variables(device_kind(recipe.cluster.device), os.environ)
    if recipe.cluster.ranks == 1:
        return _train_here(folder, recipe)
    ranks, (limit, _) = recipe.cluster.ranks, resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < OPEN_FILES:  # sockets, shards and logs: it would fail in the middle
        problem = f"{ranks} ranks, but a process may open {limit} files here"
        raise RecipeError("cluster.ranks", problem, "raise the limit: ulimit -n 1024")
    own = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)),
        # How long torchrun lets ranks end by themselves once one of them has failed.
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "10",
        SHARES: "1",
    }
    environment = python_environment(os.environ | own)
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
        # A session of its own: Ctrl-C reaches this process alone, which asks the ranks to save.
        process = subprocess.Popen(
            command, env=environment, start_new_session=True, pass_fds=[lock]
        )
        try:
            sign(lock, process.pid)
            return how_it_ended(folder, process.wait())
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # whatever is half written is nobody's
                process.wait()


def _train_here(folder: RunFolder, recipe: Recipe) -> str:
    from components.train.fit import fit  # imports torch

    try:
        return fit(folder, recipe)
    except NotFiniteError as error:
        say(f"{error}\n  {way_on(str(folder.path))}")
        return "failed"


def how_it_ended(folder: RunFolder, status: int) -> str:
    """Return ``finished``, ``stopped`` or ``failed`` for an agent that ended with ``status``.

    Raises:
        RecipeError: a rank met what a user has to mend.
        MemoryError: a rank had no memory left.
    """
    if not folder.recipe.exists():
        problem = "was removed or moved while the run trained"
        raise RecipeError(str(folder.path), problem, "start the run again, or bring it back")
    if (ended := folder.ended) is not None or status == 0:
        return ended or "finished"
    if (folder.path / "ranks" / FIRST_FAILURE).exists():
        failure = folder.read(f"ranks/{FIRST_FAILURE}", FirstFailure)
        first = f"rank {failure.rank} failed first"
        if (error := recipe_error(failure.message)) is not None:
            say(first)
            raise error
        if (soft := soft_failure(failure.message)) is not None:
            say(f"{soft.text}\n  {way_on(str(folder.path))}")
            return "failed"
        where = f"  what each rank said is in {folder.path / 'ranks'}"
        if NO_MEMORY.search(failure.message):
            say(f"{first}\n{where}")
            raise MemoryError(failure.message)
        say(f"{failure.traceback}{first}: {failure.message}\n{where}")
    if status == MENDABLE:
        problem = "has no room for the error that the first rank has told above"
        remedy = f"mend what it says, then go on with resume={folder.path}"
        raise RecipeError(str(folder.path / "ranks"), problem, remedy)
    return "failed"


@contextmanager
def _asks_to_stop(folder: RunFolder) -> Iterator[None]:
    """Let the first signal ask the ranks to save and stop, and the second end this at once."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        with suppress(OSError):  # the folder was removed: the ranks end by themselves
            folder.stop.touch()

    # SIGINT too: who starts a run in the background of a script has it ignored.
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
