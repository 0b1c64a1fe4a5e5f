"""Can this node write where the run writes, and is there room?"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from components.planner.checkpoints import checkpoint_bytes
from components.planner.job import job_of
from components.preflight.verdict import Finding
from components.spec.preflight import Preflight
from components.spec.recipe import Recipe

PROBE_BYTES = 1 << 20
GIB = 2**30


def check_places(recipe: Recipe, rules: Preflight, run: Path) -> Iterator[Finding]:
    """Look at the run's folder, and at the one for temporary files, a node's own as a rule."""
    checkpoints = rules.checkpoints * checkpoint_bytes(job_of(recipe))
    yield check_place("run folder", run, checkpoints, "cluster.preflight.checkpoints")
    temporary = Path(os.environ.get("TMPDIR", tempfile.gettempdir()))
    key = "cluster.preflight.temporary_bytes"
    yield check_place("temporary folder", temporary, rules.temporary_bytes, key)


def check_place(check: str, folder: Path, needed_bytes: int, rule: str) -> Finding:
    """Write, sync, read back and remove a probe, then ask how much is free.

    What is free is the file system's word: a quota that few of them report is not in it.
    """
    problem, free = "", 0
    try:
        problem = _probe(folder)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        problem = str(error.strerror or error)
    enough = free >= needed_bytes
    return Finding(
        check=check,
        found=f"{folder}: {problem or f'{free / GIB:.1f} GiB free'}",
        expected=f"writable, {needed_bytes / GIB:.1f} GiB free",
        rule=rule,
        verdict="bad" if problem or not enough else "ok",
        remedy="make room, ask for a larger quota, or take another folder",
    )


def _probe(folder: Path) -> str:
    written = os.urandom(PROBE_BYTES)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".preflight-") as file:
        file.write(written)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        return "" if file.read() == written else "what was written is not what is read"
