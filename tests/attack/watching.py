"""What counts as an act: a program, a connection, an import, a change outside one's folder.

`Watch` hears it from the interpreter; ``traced.py`` reads it from the kernel's side.
"""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.attack.valid import CHAIN

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Of these the first argument is a place, of two of them the second, too.
CHANGES = frozenset({
    *("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.utime"),
    *("os.rename", "os.link", "os.symlink"),
})
PAIRS = frozenset({"os.rename", "os.link"})
STARTS = frozenset({"os.exec", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn"})
HEX = "[0-9a-f]{40}"
ROOM = r"[\w./]+"
# Read-only git commands of the actions, and questions about the user's own job.
ASKED = re.compile(
    f"git (?:rev-parse HEAD|ls-files --others --exclude-standard|diff HEAD"
    f"|diff --name-only (?:--end-of-options )?{HEX} -- {ROOM})"
    r"|squeue --noheader --array (?:--(?:me|user=[a-z0-9_-]+) )?"
    r"(?:--jobs=[0-9]+(?:_[0-9]+)? )?--[Ff]ormat=\S+"
    r"|qstat [A-Za-z -]*[0-9]+(?:\[\])?(?:\.[A-Za-z0-9.-]+)?"
    r"|scontrol --oneliner show job [0-9]+(?:_[0-9]+)?"
    rf"|scancel (?:--state=PENDING )?{CHAIN}"
    r"|uname -p|/sbin/ldconfig -p"
    # The child process that opens tokenizer files first, with limits.
    rf"|{re.escape(sys.executable)} -m components\.data\.probe_tokenizer \.(?:json|model)"
)


def is_question(words: Sequence[str]) -> bool:
    """Tell the few programs that the actions run to learn something."""
    plain = [Path(words[0]).name if words[0].endswith("/git") else words[0], *words[1:]]
    return ASKED.fullmatch(" ".join(plain)) is not None


class Watch:
    """Record the acts of one case, in their order."""

    def __init__(self, room: Path) -> None:
        """Allow changes below ``room`` only; what lies in ``room/outside`` is not even read."""
        self.here = os.path.realpath(room / "here")
        self.outside = os.path.realpath(room / "outside")
        self.own = tuple(os.path.realpath(room / name) for name in ("here", "state", "tmp"))
        self.known = frozenset(name.partition(".")[0] for name in sys.modules)
        self.acts: list[str] = []
        self.listening = False

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Be the audit hook of this process."""
        if not self.listening:
            return
        self.listening = False  # what follows asks the file system itself
        try:
            told = self._judge(event, arguments)
            if told:
                self.acts.append(told)
        finally:
            self.listening = True

    def _judge(self, event: str, arguments: tuple[Any, ...]) -> str:
        if event == "open":
            return self._opened(*arguments)
        if event in CHANGES:
            places = arguments[: 2 if event in PAIRS else 1]
            places = arguments[1:2] if event == "os.symlink" else places
            named = [place for place in places if isinstance(place, str | bytes | os.PathLike)]
            odd = [one for one in named if not self._has(_real(one, follow=False))]
            return f"{event} {odd[0]!r}" if odd else ""
        if event == "subprocess.Popen":
            words = [os.fsdecode(word) for word in arguments[1]]
            return "" if is_question(words) else f"runs {' '.join(words)}"
        if event == "import":
            return self._imported(str(arguments[0]))
        if event == "socket.connect":
            return f"connects to {arguments[1]}"
        return f"{event} {arguments}" if event in STARTS else ""

    def _opened(self, place: object, _: object, flags: object) -> str:
        if not isinstance(place, str | bytes | os.PathLike):
            return ""  # a descriptor: its opening was heard
        flags = flags if isinstance(flags, int) else 0
        real = _real(place, follow=not flags & os.O_NOFOLLOW)
        if real.startswith(self.outside):
            return f"opens {real}"
        return f"writes {real}" if flags & WRITES and not self._has(real) else ""

    def new_packages(self) -> list[str]:
        """Name what was imported, also by ways that tell no hook of it."""
        tops = {name.partition(".")[0] for name in list(sys.modules)}
        return [f"imported {name}" for name in sorted(tops - self.known - LATE)]

    def _imported(self, name: str) -> str:
        """Packages that the program uses were imported before; parts of them may come late."""
        top = name.partition(".")[0]
        return "" if top in self.known or top in LATE else f"imports {name}"

    def _has(self, real: str) -> bool:
        """Tell whether a place is below the folders of this case."""
        mine = any(real == own or real.startswith(f"{own}/") for own in self.own)
        return mine or real == "/dev/null"


def _real(place: str | bytes | os.PathLike[Any], *, follow: bool) -> str:
    """Follow links, of the last name only where the call does."""
    path = os.fsdecode(place)
    if follow:
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))  # noqa: PTH118, PTH119, PTH120 (pathlib would ask the file system, which is heard)


LATE = frozenset[str]()  # packages that are only imported when something is read
