"""Cases that act on purpose, so that a test sees whether the detectors see it."""

import importlib
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from tests.attack.driver import Case, Room


def _run() -> None:
    subprocess.run(["touch", "ran"], check=True)


def _connect() -> None:
    with socket.socket() as one, suppress(OSError):
        one.connect(("127.0.0.1", 9))


def _write() -> None:
    Path("linked/ran").write_text("x")


def _import() -> None:
    importlib.import_module("planted")


ACTS: Mapping[str, Callable[[], None]] = {
    "acting-program": _run,
    "acting-connection": _connect,
    "acting-writer": _write,
    "acting-import": _import,
}


def act(words: Sequence[str]) -> int:
    """Do what the only word names."""
    ACTS[words[0]]()
    return 0


def main() -> None:
    room = Room(Path(sys.argv[1]).resolve())
    room.valid.mkdir(parents=True)
    (room.valid / "r.yaml").write_text("name: mine\n")
    results = [asdict(room.run(Case(**one), act)) for one in json.load(sys.stdin)]
    (room.work / "results.json").write_text(json.dumps(results), "utf-8")


if __name__ == "__main__":
    main()
