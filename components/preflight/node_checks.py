"""What a node can check by itself: clock, network, places to write, copies, packages, data.

Clocks are compared by Cristian's algorithm: another's answer was true somewhere between our
question and its arrival (F. Cristian, Probabilistic clock synchronization, Distributed
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
from components.preflight.verdict import DATA, ClockOffset, Judgement, NodeFinding, refused
from components.run.folder import RunFolder
from components.run.provenance import ABSENT, RECORDED, ROOT, required, version_of
from components.run.records import Packages
from components.versions import PYTHON, TORCH, installed, judge

GIB = 2**30
NODE_FOLDER = "KOCHBUCH_NODE_FOLDER"  # where a job script says that the copies are
PROBE_BYTES = 1 << 20
_QUESTIONS, _PATIENCE_SECONDS = 5, 10.0
# Upper-case words that huggingface_hub takes for yes (its constants.py, ENV_VARS_TRUE_VALUES).
_YES = ("1", "ON", "YES", "TRUE")
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
_ENTRY = re.compile(r"^(?=[A-Za-z0-9])", re.MULTILINE)  # where one of a lock begins
_SHOWN = 3


class _Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while self.rfile.read(1):
            self.wfile.write(f"{time.time()!r}\n".encode())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1_024  # all nodes may ask at once


@contextmanager
def telling_time() -> Iterator[int]:
    """Answer whoever asks this process for the time; gives the port."""
    with _Server(("", 0), _Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()


def ask_time(host: str, port: int) -> ClockOffset:
    """Compare with the clock at ``host``; of several answers the quickest is the surest.

    Raises:
        OSError: nobody answers.
    """
    with socket.create_connection((host, port), timeout=_PATIENCE_SECONDS) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asked = []
        with link.makefile("rb") as answers:
            for _ in range(_QUESTIONS):
                before = time.time()
                link.sendall(b"?")
                theirs = float(answers.readline())
                after = time.time()
                ahead, uncertain = theirs - (before + after) / 2, (after - before) / 2
                asked.append(ClockOffset(ahead_seconds=ahead, uncertain_seconds=uncertain))
    return min(asked, key=lambda clock: clock.uncertain_seconds)


def check_network(recipe: Recipe, folder: RunFolder, seen: Mapping[str, str]) -> NodeFinding:
    """Name the datasets of the hub that were not prepared, where they cannot be fetched."""
    named = [source.dataset.path for source in recipe.data.sources.values() if source.dataset]
    prepared = (folder.path / "data.json").exists()
    wanted = [name for name in named if not prepared and not Path(name).exists()]
    said = {name: seen.get(name, "") for name in _OFFLINE}
    offline = [f"{name}={word}" for name, word in said.items() if word.upper() in _YES]
    site = recipe.cluster.site
    if not isinstance(site, str) and site.internet is False:
        offline.append("cluster.site.internet=false")
    return NodeFinding(
        check="network",
        found=f"{', '.join(wanted)} would be fetched" if wanted else "nothing is fetched",
        expected=f"nothing fetched: {offline[0]}" if offline else "nothing fetched",
        rule="data.sources",
        verdict="ok" if not wanted else "bad" if offline else "unknown",
        remedy="action=prepare or action=prepare stage=true where there is a network",
    )


def check_places(recipe: Recipe, rules: Preflight, run: Path) -> Iterator[NodeFinding]:
    """Look at the run's folder, and at the one for temporary files, a node's own as a rule."""
    checkpoints = rules.checkpoints * checkpoint_bytes(job_from_recipe(recipe))
    yield check_place("run folder", run, checkpoints, "cluster.preflight.checkpoints")
    temporary = Path(os.environ.get("TMPDIR", tempfile.gettempdir()))
    key = "cluster.preflight.temporary_bytes"
    yield check_place("temporary folder", temporary, rules.temporary_bytes, key)


def check_place(check: str, folder: Path, needed_bytes: int, rule: str) -> NodeFinding:
    """Write, sync, read back and remove a probe, then ask how much is free.

    What is free is the file system's word: a quota that few of them report is not in it.
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
    return NodeFinding(
        check=check,
        found=f"{folder}: {problem or f'{free / GIB:.1f} GiB free'}",
        expected=f"writable, {needed_bytes / GIB:.1f} GiB free",
        rule=rule,
        verdict="bad" if problem or free < needed_bytes else "ok",
        remedy="make room, ask for a larger quota, or take another folder",
    )


def check_copies(run: Path, node: str, seen: Mapping[str, str]) -> Iterator[NodeFinding]:
    """Look where this code was imported from; a node without a copy took the shared one."""
    if NODE_FOLDER not in seen:
        return
    folder, why = seen[NODE_FOLDER], failed_copies(run).get(node, "nobody said why")
    own = Path(__file__).is_relative_to(folder)
    yield NodeFinding(
        check="copies",
        found=f"imports from {folder}" if own else f"no copy: {why}",
        expected=f"Python and the code in {folder}",
        rule="cluster.imports",
        verdict="ok" if own else "bad",
        remedy="make room there, or name another cluster.site.node_folder",
    )


def check_packages(folder: RunFolder, parts: Sequence[str]) -> NodeFinding:
    """Compare versions; what the run was made without may be here all the same."""
    expected, where = expected_versions(folder, parts)
    other = []
    for name, wanted in expected.items():
        here = platform.python_version() if name == "python" else version_of(name)
        if here != wanted:
            other.append(f"{name} {here}, not {wanted}")
    more = f" and {len(other) - _SHOWN} more" if len(other) > _SHOWN else ""
    shown = ", ".join(other[:_SHOWN]) + more
    return NodeFinding(
        check="packages",
        found=shown or f"{len(expected)} as expected",
        expected="the versions listed",
        rule=where,
        verdict="bad" if other else "ok",
        remedy="make setup again, or load the modules with which the run was made",
    )


def check_versions() -> NodeFinding:
    """Look whether torch and Python lie in the range that was tried."""
    verdicts: dict[str, Judgement] = {"below": "bad", "above": "unknown", "tried": "ok"}
    found = installed()
    judged = {judge(version, tried) for tried, version in found.items()}
    return NodeFinding(
        check="versions",
        found=", ".join(f"{tried.name} {version}" for tried, version in found.items()),
        expected=f"{TORCH}, {PYTHON}",
        rule="docs/versions.md",
        verdict=next(verdict for side, verdict in verdicts.items() if side in judged),
        remedy="load modules with others, or make setup where there are none",
    )


def expected_versions(folder: RunFolder, parts: Sequence[str]) -> tuple[dict[str, str], str]:
    """Read what the run was made with, or the locks of ``parts``, and say where that stands.

    No lock has torch: it is left to the site.
    """
    if (folder.path / "software.json").exists():
        software = folder.read("software.json", Packages)
        made = {"python": software.python, **software.packages}
        # What no rank of this run imports, an environment for it need not have.
        others = required([part for part in RECORDED if part not in parts])
        absent = {name for name, version in made.items() if version == ABSENT}
        idle = absent | set(others) - set(required(parts))
        return {name: made[name] for name in made if name not in idle}, "software.json"
    locks = [ROOT / "requirements" / f"{part}.lock" for part in parts]
    pins = {one.name: str(one.specifier) for lock in locks for one, _ in read_lock(lock, None)}
    pinned = {name: pins[name].removeprefix("==") for name in required(parts) if name in pins}
    return pinned, "requirements"


def read_lock(lock: Path, python: str | None) -> Iterator[tuple[Requirement, str]]:
    """Give what a lock pins, and hashes, on this system for ``python`` (3.12) or this one."""
    other = {"python_version": python, "python_full_version": f"{python}.0"} if python else None
    for entry in _ENTRY.split(lock.read_text("utf-8")):
        words, _, hashes = entry.partition("\\")
        if entry[:1].isalnum():
            requirement = Requirement(words.strip())
            if requirement.marker is None or requirement.marker.evaluate(other):
                yield requirement, hashes


def check_data(recipe: Recipe, rules: Preflight, folder: RunFolder, node: str) -> NodeFinding:
    """Compare every file's size with the manifest, and the hashes of some.

    Each node begins its hashes elsewhere in the list: together they see more.
    """
    if not (folder.path / "data.json").exists():
        return NodeFinding(
            check=DATA,
            found="not prepared",
            expected="as the manifest says",
            rule="data.json",
            verdict="unknown",
            remedy="action=prepare",
        )
    try:
        noted = folder.data
        place = Path(noted.folder)
        manifest = Manifest.read(place)
        if manifest.key != noted.key:
            problem = f"holds {manifest.key[:12]}, the run has {noted.key[:12]}"
            raise RecipeError(str(place), problem, "name the run's own data")
        files = list(manifest.files())
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
        return refused(DATA, error)
    return NodeFinding(
        check=DATA,
        found=f"{len(files)} files by size, {len(hashed)} of them by hash",
        expected="as the manifest says",
        rule="manifest.json",
        verdict="ok",
        remedy="",
    )


def some_files(files: list[FileRecord], most_bytes: int, node: str) -> Iterator[FileRecord]:
    """Go through the list from a place that follows from the node's name, up to a sum."""
    start = zlib.crc32(node.encode()) % max(1, len(files))
    for record in (*files[start:], *files[:start]):
        if record.bytes <= most_bytes:
            most_bytes -= record.bytes
            yield record
