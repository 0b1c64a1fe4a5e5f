"""Node checks: clock, network, places to write, own copies of the software.

Clocks are compared by Cristian's algorithm: another's answer was true somewhere between our
question and its arrival (F. Cristian, Probabilistic clock synchronization, Distributed
Computing 3, 1989).
"""

import os
import shutil
import socket
import socketserver
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from components.config.schema.cluster import Preflight
from components.config.schema.recipe import Recipe
from components.planner.interruptions import checkpoint_bytes
from components.planner.job import job_of
from components.preflight.verdict import ClockOffset, NodeFinding
from components.run.folder import RunFolder

_QUESTIONS = 5
_PATIENCE_SECONDS = 10.0


class _Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        """Describe what time it is as often as one byte comes."""
        while self.rfile.read(1):
            self.wfile.write(f"{time.time()!r}\n".encode())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1_024  # all nodes may ask at once


@contextmanager
def telling_time() -> Iterator[int]:
    """Answer whoever asks this process for the time; gives the port."""
    with _Server(("", 0), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
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


# Upper-case words that huggingface_hub takes for yes (its constants.py, ENV_VARS_TRUE_VALUES).
_YES = ("1", "ON", "YES", "TRUE")
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


def check_network(recipe: Recipe, folder: RunFolder, seen: Mapping[str, str]) -> NodeFinding:
    """Name the datasets of the hub that were not prepared, where they cannot be fetched."""
    named = [source.dataset.path for source in recipe.data.sources.values() if source.dataset]
    prepared = (folder.path / "data.json").exists()
    wanted = [name for name in named if not prepared and not Path(name).exists()]
    why = _why_offline(recipe, seen)
    return NodeFinding(
        check="network",
        found=f"{', '.join(wanted)} would be fetched" if wanted else "nothing is fetched",
        expected=f"nothing fetched: {why}" if why else "nothing fetched",
        rule="data.sources",
        verdict="ok" if not wanted else "bad" if why else "unknown",
        remedy="action=prepare or action=stage where there is a network",
    )


def _why_offline(recipe: Recipe, seen: Mapping[str, str]) -> str:
    """Describe by which word of the environment or of the profile this node has no network."""
    for name in _OFFLINE:
        if seen.get(name, "").upper() in _YES:
            return f"{name}={seen[name]}"
    site = recipe.cluster.site
    if not isinstance(site, str) and site.internet is False:
        return "cluster.site.internet=false"
    return ""


PROBE_BYTES = 1 << 20
GIB = 2**30


def check_places(recipe: Recipe, rules: Preflight, run: Path) -> Iterator[NodeFinding]:
    """Look at the run's folder, and at the one for temporary files, a node's own as a rule."""
    checkpoints = rules.checkpoints * checkpoint_bytes(job_of(recipe))
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
    enough = free >= needed_bytes
    return NodeFinding(
        check=check,
        found=f"{folder}: {problem or f'{free / GIB:.1f} GiB free'}",
        expected=f"writable, {needed_bytes / GIB:.1f} GiB free",
        rule=rule,
        verdict="bad" if problem or not enough else "ok",
        remedy="make room, ask for a larger quota, or take another folder",
    )


FOLDER = "copies"  # below the run's folder
NODE_FOLDER = "KOCHBUCH_NODE_FOLDER"  # where a job script says that the copies are


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


def failed_copies(run: Path) -> dict[str, str]:
    """Read by node why it has no copy."""
    files = sorted((run / FOLDER).glob("*.failed"))
    return {file.stem: file.read_text("utf-8").strip() for file in files}
