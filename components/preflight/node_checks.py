"""Checks of a node by itself: clock, writable folders, copies, packages, data.

Clocks are compared by Cristian's algorithm: the server's time was correct at some moment
between request and reply (F. Cristian, Probabilistic clock synchronization, Distributed
Computing 3, 1989).
"""

import os
import platform
import re
import shutil
import socket
import socketserver
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from packaging.requirements import Requirement

from components.config.recipe import Recipe
from components.config.schema.cluster import Preflight
from components.data.files import FileRecord, verify_file
from components.data.manifest import Manifest
from components.errors import RecipeError
from components.planner.interruptions import checkpoint_bytes
from components.planner.job import job_from_recipe
from components.preflight.copies import failed_copies
from components.preflight.verdict import (
    DATA,
    ClockOffset,
    Judgement,
    NodeFinding,
    finding_from_error,
    judge_value,
    make_finding,
)
from components.run.folder import RunFolder
from components.run.provenance import ABSENT, RECORDED, ROOT, list_required, version_of
from components.run.records import Packages
from components.versions import PYTHON, TORCH, compare_version, read_installed_versions

GIB = 2**30
NODE_FOLDER = "KOCHBUCH_NODE_FOLDER"  # set by job scripts to the folder of the copies
PROBE_BYTES = 1 << 20
_QUESTIONS, _PATIENCE_SECONDS = 5, 10.0
_ENTRY = re.compile(r"^(?=[A-Za-z0-9])", re.MULTILINE)  # start of an entry in a lock
_SHOWN = 3


class _Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while self.rfile.read(1):
            self.wfile.write(f"{time.time()!r}\n".encode())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1_024  # all nodes may connect at once


@contextmanager
def telling_time() -> Iterator[int]:
    """Serve this process's time to other nodes and yield the port."""
    with _Server(("", 0), _Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()


def ask_time(host: str, port: int) -> ClockOffset:
    """Return the offset of the clock at ``host``, from the fastest of several replies.

    Raises:
        OSError: the server does not reply.
    """
    with socket.create_connection((host, port), timeout=_PATIENCE_SECONDS) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        offsets = []
        with link.makefile("rb") as answers:
            for _ in range(_QUESTIONS):
                before = time.time()
                link.sendall(b"?")
                theirs = float(answers.readline())
                after = time.time()
                ahead, uncertain = theirs - (before + after) / 2, (after - before) / 2
                offsets.append(ClockOffset(ahead_seconds=ahead, uncertain_seconds=uncertain))
    return min(offsets, key=lambda clock: clock.uncertain_seconds)


def check_places(recipe: Recipe, rules: Preflight, run: Path) -> Iterator[NodeFinding]:
    """Check the run folder and the temporary folder, which is usually local to the node."""
    checkpoints = rules.checkpoints * checkpoint_bytes(job_from_recipe(recipe))
    yield check_place("run folder", run, checkpoints)
    temporary = Path(os.environ.get("TMPDIR", tempfile.gettempdir()))
    yield check_place("temporary folder", temporary, rules.temporary_bytes)


def check_place(check: str, folder: Path, needed_bytes: int) -> NodeFinding:
    """Write, sync, read back and remove a probe file, then check the free space.

    On most file systems the reported free space does not include quotas.
    """
    problem, free, written = "", 0, os.urandom(PROBE_BYTES)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".preflight-") as file:
            file.write(written)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            if file.read() != written:
                problem = "what was written is not what is read"
        free = shutil.disk_usage(folder).free
    except OSError as error:
        problem = str(error.strerror or error)
    state = f"{folder}: {problem or f'{free / GIB:.1f} GiB free'}"
    expected = f"writable, {needed_bytes / GIB:.1f} GiB free"
    return make_finding(
        check, state, expected, "bad" if problem else judge_value(free, needed_bytes)
    )


def check_copies(run: Path, node: str, seen: Mapping[str, str]) -> Iterator[NodeFinding]:
    """Check that this code is the node's copy. Without a copy, the shared code is imported."""
    if NODE_FOLDER not in seen:
        return
    folder, why = seen[NODE_FOLDER], failed_copies(run).get(node, "no error recorded")
    is_local = Path(__file__).is_relative_to(folder)
    origin = f"imports from {folder}" if is_local else f"no copy: {why}"
    expected = f"Python and the code in {folder}"
    yield make_finding("copies", origin, expected, "ok" if is_local else "bad")


def check_packages(folder: RunFolder, parts: Sequence[str]) -> NodeFinding:
    """Compare package versions. Packages that the run was created without may be installed."""
    expected, where = expected_versions(folder, parts)
    mismatches = []
    for name, wanted in expected.items():
        actual = platform.python_version() if name == "python" else version_of(name)
        if actual != wanted:
            mismatches.append(f"{name} {actual}, not {wanted}")
    more = f" and {len(mismatches) - _SHOWN} more" if len(mismatches) > _SHOWN else ""
    summary = ", ".join(mismatches[:_SHOWN]) + more or f"{len(expected)} as expected"
    verdict: Judgement = "bad" if mismatches else "ok"
    return make_finding("packages", summary, "the versions listed", verdict, rule=where)


def check_versions() -> NodeFinding:
    """Check whether the versions of torch and Python are in the tested range."""
    verdicts: dict[str, Judgement] = {"below": "bad", "above": "unknown", "tried": "ok"}
    versions = read_installed_versions()
    sides = {compare_version(version, tried) for tried, version in versions.items()}
    here = ", ".join(f"{tried.name} {version}" for tried, version in versions.items())
    worst = next(verdict for side, verdict in verdicts.items() if side in sides)
    return make_finding("versions", here, f"{TORCH}, {PYTHON}", worst)


def expected_versions(folder: RunFolder, parts: Sequence[str]) -> tuple[dict[str, str], str]:
    """Return the expected versions and their source: ``software.json``, or locks of ``parts``.

    No lock contains torch, which the site provides.
    """
    if (folder.path / "software.json").exists():
        software = folder.read_file("software.json", Packages)
        recorded = {"python": software.python, **software.packages}
        # The environment may lack packages that no rank of this run imports.
        others = list_required([part for part in RECORDED if part not in parts])
        absent = {name for name, version in recorded.items() if version == ABSENT}
        idle = absent | set(others) - set(list_required(parts))
        return {name: recorded[name] for name in recorded if name not in idle}, "software.json"
    locks = [ROOT / "requirements" / f"{part}.lock" for part in parts]
    pins = {pin.name: str(pin.specifier) for lock in locks for pin, _ in read_lock(lock, None)}
    pinned = {
        name: pins[name].removeprefix("==") for name in list_required(parts) if name in pins
    }
    return pinned, "requirements"


def read_lock(lock: Path, python: str | None) -> Iterator[tuple[Requirement, str]]:
    """Yield a lock's requirements with hashes for ``python``, such as 3.12, or this Python.

    Requirements whose marker does not match this system are skipped.
    """
    environment = (
        {"python_version": python, "python_full_version": f"{python}.0"} if python else None
    )
    for entry in _ENTRY.split(lock.read_text("utf-8")):
        words, _, hashes = entry.partition("\\")
        if entry[:1].isalnum():
            requirement = Requirement(words.strip())
            if requirement.marker is None or requirement.marker.evaluate(environment):
                yield requirement, hashes


def check_data(recipe: Recipe, rules: Preflight, folder: RunFolder, node: str) -> NodeFinding:
    """Compare the size of every file and the hashes of some files with the manifest.

    Each node starts to hash at a different file, so that all nodes together check more.
    """
    expected = "as the manifest says"
    if not (folder.path / "data.json").exists():
        rule, remedy = "data.json", "action=prepare"
        return make_finding(DATA, "not prepared", expected, "unknown", rule=rule, remedy=remedy)
    try:
        data = folder.data_record
        place = Path(data.folder)
        manifest = Manifest.from_folder(place)
        if manifest.key != data.key:
            problem = f"holds {manifest.key[:12]}, the run has {data.key[:12]}"
            raise RecipeError(str(place), problem, "name the run's own data")
        files = list(manifest.list_files())
        for record in files:
            verify_file(place, record, contents=False)
        hashed = list(some_files(files, rules.hashed_bytes, node))
        for record in hashed:
            verify_file(place, record, contents=True)
        start = recipe.model["init_from"]
        if start != "none" and not Path(str(start)).exists():
            problem = f"{start} is not to be seen from this node"
            remedy = "put it on a file system that nodes share"
            raise RecipeError("model.init_from", problem, remedy)
    except RecipeError as error:
        return finding_from_error(DATA, error)
    checked = f"{len(files)} files by size, {len(hashed)} of them by hash"
    return make_finding(DATA, checked, expected, "ok")


def some_files(files: list[FileRecord], most_bytes: int, node: str) -> Iterator[FileRecord]:
    """Yield files up to a sum of bytes, starting at a place derived from the node's name."""
    start = zlib.crc32(node.encode()) % max(1, len(files))
    for record in (*files[start:], *files[:start]):
        if record.bytes <= most_bytes:
            most_bytes -= record.bytes
            yield record
