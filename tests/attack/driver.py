"""Run commands one after another, each in its own watched child.

``python -m tests.attack.driver WORK < cases.json > results.json``: a process imports
everything, makes the valid files, and forks for each case, so that cases are independent.
"""

import gc
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from tests.attack.changes import SECRET, Change, apply
from tests.attack.valid import PARTS, make_valid
from tests.attack.watching import Watch

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 300  # a case takes one or two where nothing else runs
MOST_MEMORY = 8 << 30  # beyond what the program has already mapped
TOO_LONG, BROKEN = -1, -2
# Fake scheduler programs print nothing and succeed.
FAKES = (
    *("squeue", "scancel", "sbatch", "scontrol", "sacct", "qstat", "qselect", "qdel", "qsub"),
    "qalter",
)
FAKE = "#!/bin/sh\nexit 0\n"
# The commands import these late. A child should not repeat it.
LATE_IMPORTS = (
    "command.actions.evaluate",
    "command.actions.new",
    "command.actions.prepare",
    "command.actions.train",
    "command.dispatch",
    "command.evaluate.questions",
    "components.report.page",
    "components.train.fit",
    "torch.utils.tensorboard",
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One command on one changed file; ``env`` is added to the environment.

    ``limits`` are how many files may be open, and the bytes of memory beyond those in use.
    """

    name: str
    kind: str
    words: Sequence[str]
    changes: Sequence[Change] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a case ended: status, output, acts of the child, and changes outside its folder."""

    name: str
    status: int
    seconds: float
    said: str
    acts: Sequence[str]
    stray: Sequence[str]


class Room:
    """The folders of all cases, and the valid files that they are made of."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.valid = work / "valid"
        self.programs = work / "programs"

    def open(self) -> None:
        """Make the valid files and the fake programs, and import what actions import late."""
        self.valid.mkdir(parents=True)
        self.programs.mkdir()
        for name in FAKES:
            program = self.programs / name
            program.write_text(FAKE)
            program.chmod(0o755)
        os.environ |= _environment(self.work / "home") | {
            "PATH": f"{self.programs}:{os.environ['PATH']}"
        }
        import_late_modules()
        used = self.work / "used"
        if (child := os.fork()) == 0:
            _make(self.valid, used)
        _, told = os.waitpid(child, 0)
        if told:
            raise RuntimeError("the valid files could not be made")
        for name in used.read_text("utf-8").split():
            with suppress(ImportError):
                importlib.import_module(name)
        check_one_thread()

    def run(self, case: Case, act: Callable[[Sequence[str]], int]) -> Result:
        """Run one case in a child, and say how it ended."""
        folder = self.work / "cases" / case.name
        _lay_out(folder, self.valid, case)
        before = _snapshot(folder)
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            _be_the_child(folder, case, act)
        status = wait_for(child)
        mark(folder, "end")  # for a child that could not say it
        seconds = time.monotonic() - began
        said = (folder / "said").read_bytes().decode("utf-8", "surrogateescape")
        heard = folder / "acts"
        acts = json.loads(heard.read_text("utf-8")) if heard.exists() else []
        stray = sorted(_differing(before, _snapshot(folder)) | set(_leaks(folder / "here")))
        return Result(
            name=case.name,
            status=status,
            seconds=round(seconds, 3),
            said=said.encode("utf-8", "backslashreplace").decode(),
            acts=acts,
            stray=stray,
        )


def import_late_modules() -> None:
    for name in LATE_IMPORTS:
        importlib.import_module(name)


def check_one_thread() -> None:
    """Check that this process can fork, and keep its objects shared with its children.

    A child has only the thread that forked: a lock of another thread would stay locked.
    """
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    assert threads == 1, f"a process with {threads} threads cannot fork"
    gc.freeze()


def _make(valid: Path, used: Path) -> None:
    """Make the valid files in a child: training leaves threads behind; and never return."""
    status = 1
    try:
        os.chdir(valid)
        make_valid(valid)
        names = (name for name in sys.modules if name.partition(".")[0] != "__main__")
        used.write_text("\n".join(names), "utf-8")
        status = 0
    except BaseException:  # noqa: BLE001 (told, and the parent says that there are none)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _environment(home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "KOCHBUCH_ATTACK_SECRET": SECRET,
        "GIT_OPTIONAL_LOCKS": "0",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _lay_out(folder: Path, valid: Path, case: Case) -> None:
    """Make a working folder with the valid files, change them, and put secrets next to it."""
    here, outside = folder / "here", folder / "outside"
    for place in (here, outside / "kept", folder / "tmp", folder / "state"):
        place.mkdir(parents=True)
    (folder / "home").mkdir()
    (outside / "secret.txt").write_text(f"{SECRET}\n")
    (outside / "kept" / "file").write_text(f"{SECRET}\n")
    (outside / "secret.yaml").write_text(f"description: {SECRET}\n")
    (here / "linked").symlink_to("../outside")
    for place in (here, folder / "beside"):
        package = place / "planted"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("open('../outside/ran', 'w').close()\n")
    for part in PARTS[case.kind]:
        source = valid / part
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, here / part)
    for noted in here.glob("*/data.json"):  # the run's data came with it
        noted.write_text(noted.read_text("utf-8").replace(str(valid), str(here)), "utf-8")
    config = folder / "home" / ".config" / "kochbuch"
    config.mkdir(parents=True)
    apply(list(case.changes), here, PARTS[case.kind][-1])
    if (site := here / "site.yaml").exists() or site.is_symlink():
        site.rename(config / "site.yaml")


def _be_the_child(folder: Path, case: Case, act: Callable[[Sequence[str]], int]) -> None:
    """Run the command as a program of its own would run, and never return."""
    status = BROKEN
    try:
        enter_folder(folder, folder / "said", case.env)
        # A user who works in the clone has both before all packages.
        sys.path[:0] = [str(folder / "here"), str(folder / "beside")]
        watch = Watch(folder)
        sys.addaudithook(watch.hear)
        _limit(case.limits)
        mark(folder, "begin")
        watch.listening = True
        status = run_words(act, case.words)
        watch.listening = False
        _limit({})
        mark(folder, "end")
        (folder / "acts").write_text(json.dumps([*watch.acts, *watch.new_packages()]), "utf-8")
    finally:
        os._exit(status & 0xFF if status >= 0 else 99)


def enter_folder(folder: Path, output: Path, env: Mapping[str, str]) -> None:
    """Make this child a program that runs in ``folder/here`` and writes to ``output``."""
    os.setsid()
    os.chdir(folder / "here")
    os.environ |= _environment(folder / "home") | {
        "TMPDIR": str(folder / "tmp"),
        "XDG_STATE_HOME": str(folder / "state"),
        **env,
    }
    stream = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    encoding = env.get("PYTHONIOENCODING", "utf-8")
    for text, errors in ((sys.stdout, "strict"), (sys.stderr, "backslashreplace")):
        assert isinstance(text, TextIOWrapper)
        text.reconfigure(encoding=encoding, errors=errors)


def _limit(limits: Mapping[str, int]) -> None:
    """Take memory and files away, as a busy login node does; nothing named, give them back."""
    pages = int(Path("/proc/self/statm").read_text("utf-8").split()[0])
    most = pages * resource.getpagesize() + limits.get("memory", MOST_MEMORY)
    hard = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits.get("files", min(files, 1024)), files))


def run_words(act: Callable[[Sequence[str]], int], words: Sequence[str]) -> int:
    """Give the exit status that the interpreter would give."""
    try:
        status = int(act(words))
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 (whatever it is, a user would see a traceback)
        traceback.print_exc()
        status = 99
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return 120
    return status


def mark(folder: Path, moment: str) -> None:
    """Ask for a file that is not there: a trace shows where a case begins and ends."""
    with suppress(FileNotFoundError):
        os.open(folder / f"mark-{moment}", os.O_RDONLY)


def wait_for(child: int) -> int:
    """Wait for the child, but no longer than a user would."""
    until = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < until:
        found, told = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(told)
        time.sleep(0.003)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TOO_LONG


def _snapshot(folder: Path) -> dict[str, str]:
    """Describe all files outside the working folder and the program's own state."""
    own = {folder / name for name in ("here", "state", "tmp", "said", "acts")}
    found = {}
    for root, folders, files in os.walk(folder):
        at = Path(root)
        folders[:] = [name for name in folders if at / name not in own]
        for name in [*folders, *files]:
            path = at / name
            if path not in own:
                found[str(path.relative_to(folder))] = _describe(path)
    return found


def _describe(path: Path) -> str:
    seen = path.lstat()
    content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    return f"{seen.st_mode} {seen.st_nlink} {hashlib.sha256(content).hexdigest()}"


def _differing(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    return {
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    }


def _leaks(here: Path) -> Iterator[str]:
    """Name regular files in the working folder into which the secret was copied."""
    for root, _, files in os.walk(here):
        for name in files:
            path = Path(root, name)
            if path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1:
                with path.open("rb") as stream:
                    if SECRET.encode() in stream.read(1 << 22):
                        yield f"here/{path.relative_to(here)}"


def run_all(work: Path, cases: Iterable[Case]) -> Iterator[Result]:
    """Open a room and run the cases in it."""
    room = Room(work)
    room.open()
    from command.entry import run_with_signals

    for case in cases:
        yield room.run(case, run_with_signals)


def _main() -> None:
    work = Path(sys.argv[1]).resolve()
    cases = [Case(**one) for one in json.load(sys.stdin)]
    results: list[dict[str, Any]] = [asdict(one) for one in run_all(work, cases)]
    (work / "results.json").write_text(json.dumps(results), "utf-8")


if __name__ == "__main__":
    _main()
