"""One run, one writer: who trains in a run folder holds its lock, with all of its ranks."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from components.errors import RecipeError
from components.run.disk import explained
from components.run.writer_lock import (
    DYING_SECONDS,
    Holder,
    Occupied,
    alone,
    check_free,
    share,
)

# Set for ranks whose launcher holds the lock: they share it. A job's first rank takes it.
SHARES = "KOCHBUCH_SHARES_WRITER_LOCK"
# A server takes back the lock of a node that died: NFS 4 after 90 s, if nobody chose otherwise.
DEAD_NODE_SECONDS = 100.0


@contextmanager
def train_alone(
    path: Path, key: str, say: Callable[[str], None], *, seconds: float = DYING_SECONDS
) -> Iterator[int]:
    """Hold the run folder for who named it by ``key``; see `alone`.

    Raises:
        RecipeError: the run is trained by somebody else.
    """
    occupied = _occupied(path, key)
    with explained(path), alone(path, seconds=seconds, occupied=occupied, say=say) as lock:
        yield lock


@contextmanager
def rank_holds(
    path: Path, seen: Mapping[str, str], say: Callable[[str], None]
) -> Iterator[None]:
    """Hold the run folder as a rank: with its launcher, or in a job by the first for all.

    A job that is queued again may begin before its predecessor is gone.

    Raises:
        RecipeError: the run is trained by somebody else.
    """
    if SHARES not in seen and int(seen.get("RANK", "0")) == 0:
        with train_alone(path, "run", say, seconds=DEAD_NODE_SECONDS):
            yield
        return
    if SHARES in seen:
        share(path, occupied=_occupied(path, "run"))
    yield


def check_not_trained(path: Path, key: str) -> None:
    """Refuse a run that is trained now.

    Raises:
        RecipeError: so is this one.
    """
    with explained(path):
        check_free(path, occupied=_occupied(path, key))


def _occupied(path: Path, key: str) -> Occupied:
    def refusal(holder: Holder | None) -> RecipeError:
        who = holder or "a process that left no name"
        way = f"wait until it ends, or let it save and stop: touch {path / 'stop'}"
        return RecipeError(key, f"{path} is being trained by {who}", way)

    return refusal
