"""The system calls of each case that are acts, from the output of ``strace``."""

import ast
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.attack.watching import is_question

CALLS = (
    *("execve", "execveat", "connect", "openat", "open", "creat", "mkdir", "mkdirat"),
    *("rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir", "link", "linkat"),
    *("symlink", "symlinkat", "truncate", "chmod", "fchmodat", "chown", "fchownat", "mknodat"),
)
# -y names the file behind each descriptor, and so where an opened link led.
STRACE = ("strace", "-f", "-y", "-qq", "--seccomp-bpf", "-s", "4096", "-e")
TRACER = (*STRACE, f"trace={','.join(CALLS)}", "-o")
# Another call came between its beginning and its rest.
CUT, REST = " <unfinished ...>", re.compile(r"<\.\.\. \w+ resumed>")
MARK = re.compile(r'"(?P<room>[^"]*/cases/(?P<name>[^"/]+))/mark-(?P<moment>begin|end)"')
PROGRAM = re.compile(r'execve\("(?P<path>[^"]*)", (?P<words>\[.*\]), 0x')
PLACES = re.compile(
    r'(?:AT_FDCWD<(?P<at>[^>]*)>|\d+<(?P<fd>[^>]*)>)?,? ?"(?P<text>(?:[^"\\]|\\.)*)"'
)
WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND")
OPENED = re.compile(r"= \d+<(?P<real>.*)>$")
FAILED = re.compile(r"= -1 E")


def calls(trace: Path) -> Iterator[str]:
    """Yield the text of every call, whole, when it ended."""
    begun = dict[str, str]()
    with trace.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            process, _, call = line.rstrip("\n").partition(" ")
            call = call.lstrip()
            if call.endswith(CUT):
                begun[process] = call.removesuffix(CUT)
            elif rest := REST.match(call):
                yield begun.pop(process, "") + call[rest.end() :]
            else:
                yield call


def acts_by_case(trace: Path) -> dict[str, list[str]]:
    """List for each case in the trace the calls that it should not have made."""
    found: dict[str, list[str]] = defaultdict(list)
    name, room = "", ""
    for call in calls(trace):
        if marked := MARK.search(call):
            begins = marked["moment"] == "begin"
            name, room = (marked["name"], marked["room"]) if begins else ("", "")
            found[marked["name"]] += []
        elif name and not is_harmless(call, room):
            found[name].append(call)
    return found


def is_harmless(call: str, room: str) -> bool:
    """Tell whether a call only reads, asks git, or changes the case's own folders."""
    kind = call.partition("(")[0]
    if kind not in CALLS:
        return True  # a signal, or a process that ended
    if kind.startswith("exec"):
        return _is_harmless_program(call)
    if kind == "connect":
        return "AF_UNIX" in call and bool(FAILED.search(call))  # the daemon of user names
    if kind in {"open", "openat", "creat"}:
        return _is_harmless_opening(call, room)
    return bool(FAILED.search(call)) or all(
        _is_below(place, room) for place in _places(call, kind, f"{room}/here")
    )


def _is_harmless_program(call: str) -> bool:
    found = PROGRAM.match(call)
    if found is None:
        return False
    words = ast.literal_eval(found["words"])
    return is_question(words) or "/git-core/" in found["path"]


def _is_harmless_opening(call: str, room: str) -> bool:
    opened = OPENED.search(call)
    if opened is None:
        return True  # it failed
    real = opened["real"]
    if real.startswith(f"{room}/outside"):
        return False
    return not WRITES.search(call) or real.startswith("/dev/") or _is_below(real, room)


def _places(call: str, kind: str, here: str) -> list[str]:
    """Return the changed paths: for a link its own path, not its target."""
    found = []
    for place in PLACES.finditer(call):
        text = place["text"].encode("latin-1", "replace").decode("unicode_escape")
        where = place["at"] or place["fd"] or here
        full = os.path.join(where, text)  # noqa: PTH118 (an absolute second part wins)
        parent, last = os.path.split(full)
        found.append(os.path.join(os.path.realpath(parent), last))  # noqa: PTH118 (as the kernel joins them)
    return found[-1:] if kind.startswith("symlink") else found


def _is_below(real: str, room: str) -> bool:
    own = [f"{room}/{name}" for name in ("here", "state", "tmp")]
    if real.startswith("/dev/shm/sem."):  # a lock between threads or processes of its own
        return True
    return any(real == one or real.startswith(f"{one}/") for one in own)
