"""What nobody foresaw: one message, a file of details, and a status that tells whose it is."""

import ast
import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from command.main import main
from command.outcome import ActionResult, call_and_report
from components.errors import RecipeError

Patch = pytest.MonkeyPatch
Said = pytest.CaptureFixture[str]
Breaks = Callable[[BaseException], None]

ROOT = Path(__file__).resolve().parents[2]
SHOW = ("recipe=teuken7b", "action=show")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Where the details of faults are kept."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "kochbuch" / "faults"


@pytest.fixture
def broken(monkeypatch: Patch) -> Breaks:
    """Let ``action=show`` raise something."""

    def breaks(error: BaseException) -> None:
        def run(arguments: object) -> ActionResult:
            raise error

        monkeypatch.setattr("command.actions.show.run", run)

    return breaks


def call(*words: str, **limits: int) -> subprocess.CompletedProcess[str]:
    """Run a process under limits (``RLIMIT_...``)."""

    def limit() -> None:
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), (value, value))

    return subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *words],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("walnuts"), "KeyError: 'walnuts'"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (RuntimeError("two\nlines"), "RuntimeError: two lines"),
        (OSError(errno.ECHILD, "No child processes"), "ChildProcessError: "),
        (SystemError("error return without exception set"), "SystemError: error return"),
    ],
)
def test_an_internal_error_is_a_message_and_a_file_of_details(
    error: Exception, said: str, broken: Breaks, state: Path, monkeypatch: Patch, capfd: Said
) -> None:
    monkeypatch.setenv("WALNUT_TOKEN", "hunter2")
    broken(error)
    assert main([*SHOW, "name=two words"]) == 4
    message = capfd.readouterr().err
    assert message.startswith(f"internal error, not caused by your input: {said}")
    assert (
        "\n  command: python run.py recipe=teuken7b action=show 'name=two words'\n" in message
    )
    (file,) = state.iterdir()
    assert f"\n  details: {file}; please report it" in message
    assert "Traceback" not in message
    assert (file.stat().st_mode | state.stat().st_mode) & 0o077 == 0  # for their owner alone
    details = file.read_text()
    assert "hunter2" not in details
    assert "Traceback (most recent call last):" in details
    assert f"in: {Path.cwd()}\n" in details
    assert re.search(r"^python: 3\.\d+", details, re.M)
    assert "hydra-core 1.3" in details


NO_MEMORY = [
    MemoryError("Unable to allocate 8.00 GiB"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"),
    RuntimeError("CUDA out of memory. Tried to allocate 8.00 GiB"),
    RuntimeError("can't start new thread"),
    RuntimeError("std::bad_alloc"),
    ImportError("libtorch_cpu.so: failed to map segment from shared object"),
]


@pytest.mark.parametrize("error", NO_MEMORY)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_out_of_memory_is_not_an_internal_error(error, is_wrapped, broken, state, capfd):
    if is_wrapped:
        wrapped = KeyError("cannot be built")
        wrapped.__cause__ = error
        error = wrapped
    broken(error)
    assert main(SHOW) == 2
    message = capfd.readouterr().err
    assert message.startswith("this machine: no memory is left: ")
    assert "raise the memory limit: ulimit -v" in message
    assert not state.exists()


def test_running_out_of_memory_during_the_message_is_handled(
    broken: Breaks, monkeypatch: Patch, capfd: Said
) -> None:
    def say(text: str) -> None:
        raise MemoryError

    monkeypatch.setattr("command.outcome.log_line", say)
    broken(MemoryError())
    assert main(SHOW) == 2
    message = capfd.readouterr().err
    assert message.startswith("this machine: no memory is left\n")
    assert "Traceback" not in message


@pytest.mark.parametrize("read", [Path.read_bytes, Path.read_text])
def test_read_error_names_file(read, monkeypatch, capfd):
    """The memory of a process is a file whose first page cannot be read."""

    def run(arguments: object) -> ActionResult:
        read(Path("/proc/self/mem"))
        return ActionResult()

    monkeypatch.setattr("command.actions.show.run", run)
    assert main(SHOW) == 2
    assert capfd.readouterr().err.startswith("/proc/self/mem: Input/output error\n")


def test_details_go_elsewhere(broken, tmp_path, monkeypatch, capfd):
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    broken(KeyError("x"))
    for place in ("temporary", "file"):
        with monkeypatch.context() as context:  # pytest has temporary files of its own
            context.setattr("tempfile.tempdir", str(tmp_path / place))
            assert main(SHOW) == 4
    kept, said = capfd.readouterr().err.split("\ninternal error")
    (file,) = (tmp_path / "temporary").glob("*/*.txt")
    assert f"details: {file};" in kept
    assert "Traceback (most recent call last):" in said


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EMFILE, "raise the limit of open files: ulimit -n"),
        (errno.ENOSPC, "free disk space there"),
        (errno.EACCES, "choose a path that you may write to"),
        (errno.EROFS, "choose a path that you may write to"),
        (errno.ESTALE, "ask the administrator of that file system"),
        (errno.ETIMEDOUT, "ask the administrator of that file system"),
    ],
)
def test_a_system_error_is_not_an_internal_error(number, said, broken, state, capfd):
    broken(OSError(number, os.strerror(number), "plan.html"))
    assert main(SHOW) == 2
    message = capfd.readouterr().err
    assert message.startswith(f"plan.html: {os.strerror(number)}\n")
    assert said in message
    assert not state.exists()


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("action=pack", "x.recipe.yaml"), errno.ENOSPC),
        (("action=pack", "x.lock.yaml"), errno.EDQUOT),
        (("action=plan", "cluster=juwels", "scale=full", "plan.html"), errno.ENOSPC),
    ],
)
def test_a_file_without_disk_space_is_named_and_removed(
    words: tuple[str, ...], number: int, tmp_path: Path, monkeypatch: Patch, capfd: Said
) -> None:
    *action, name = words

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    file = tmp_path / "new" / "folder" / name
    assert main(["recipe=teuken7b", *action, f"file={file}"]) == 2
    message = capfd.readouterr().err
    assert str(file) in message
    assert os.strerror(number) in message
    assert list(tmp_path.iterdir()) == []


def test_full_disk_names_target(broken: Breaks, capfd: Said) -> None:
    broken(OSError(errno.ENOSPC, "No space left on device", "source", None, "target"))
    assert main(SHOW) == 2
    assert capfd.readouterr().err.startswith("target: No space left on device\n")
    broken(OSError(errno.ENOENT, "No such file or directory", "source", None, "target"))
    assert main(SHOW) == 2
    assert capfd.readouterr().err.startswith("source: No such file or directory\n")


def test_an_error_in_a_point_does_not_stop_the_sweep(monkeypatch: Patch, capfd: Said) -> None:
    def run(arguments: object) -> ActionResult:
        seed = arguments.values["budget.seed"]  # type: ignore[attr-defined]  # Arguments
        if seed == 1:
            raise KeyError("walnuts")
        if seed == 2:
            raise RecipeError(
                "budget.seed", "a rank runs out of memory"
            )  # no limit of this machine
        sys.stdout.write(f"seed {seed}\n")
        return ActionResult()

    monkeypatch.setattr("command.actions.show.run", run)
    assert main(["-m", *SHOW, "budget.seed=1,2,3"]) == 4
    said = capfd.readouterr()
    assert said.out == "seed 3\n"
    assert "[recipe=teuken7b action=show budget.seed=1] internal error" in said.err
    assert (
        "[recipe=teuken7b action=show budget.seed=2] budget.seed: a rank runs out of"
        in said.err
    )


def test_an_interrupt_ends_a_sweep(monkeypatch: Patch, capfd: Said) -> None:
    begun = []

    def run(arguments: object) -> ActionResult:
        begun.append(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr("command.actions.show.run", run)
    assert main(["-m", *SHOW, "budget.seed=1,2,3"]) == 130
    assert len(begun) == 1
    assert capfd.readouterr().err == "stopped; incomplete files were removed\n"


def test_wrapped_interrupt_ends(broken: Breaks, capfd: Said) -> None:
    """As Hydra does of whatever is raised while it composes."""
    wrapped = RecipeError("recipe", "cannot be composed")
    wrapped.__context__ = ValueError("in a merge")
    wrapped.__context__.__context__ = KeyboardInterrupt()
    broken(wrapped)
    assert main(SHOW) == 130
    assert capfd.readouterr().err == "stopped; incomplete files were removed\n"


def test_a_closed_stderr_is_not_an_error(monkeypatch: Patch) -> None:
    class Gone:
        def write(self, text: str) -> int:
            raise BrokenPipeError

    def breaks() -> ActionResult:
        raise KeyError("x")

    monkeypatch.setattr(sys, "stderr", Gone())
    assert call_and_report(breaks, []).status == 4


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "limit"),
    [
        (("action=verify", "file=x"), {"RLIMIT_NOFILE": 24}),
        (("-m", *SHOW), {"RLIMIT_NOFILE": 24}),
        (SHOW, {"RLIMIT_AS": 60 << 20}),
        (SHOW, {"RLIMIT_AS": 200 << 20}),
    ],
)
def test_low_limit_gives_no_traceback(words: tuple[str, ...], limit: dict[str, int]) -> None:
    done = call(*words, **limit)
    assert done.returncode in {0, 2}, done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_standard_output_is_reported_once(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, str(ROOT / "run.py"), *SHOW],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "No space left on device\n  free disk space there" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_exceptions_are_caught_in_a_single_place() -> None:
    """Elsewhere a blind except has a reason on its line, for what a library does not name."""
    blind = {"Exception", "BaseException"}
    taking = [
        str(file.relative_to(ROOT))
        for file in (ROOT / "command").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or getattr(node.type, "id", "") in blind)
    ]
    assert taking == ["command/outcome.py"]


@pytest.mark.parametrize("word", ["run=b\udcff", "recipe=\udcff", "name=b\udcff"])
def test_an_argument_that_is_not_utf8_is_refused(word: str, capfd: Said) -> None:
    assert main([word, "action=train"]) == 2
    assert "is not UTF-8 text" in capfd.readouterr().err
