"""Does the program hold under every torch of its range? Each in an environment of its own.

    python -m benchmarks.versions.versions recipe=NAME [TORCH ...] [CHECK ...]

A TORCH is `2.11.0` or `2.15.0-py3.12`, a CHECK one of train, resume, moved, parity and tests:
what is not named is not tried again, and keeps what was found. Environments are built below
`$XDG_CACHE_HOME/kochbuch`, up to 8 GB each, and kept. In each a miniature trains and goes on
from its checkpoint, a run begun under the locked torch goes on, tensor ranks and a pipeline are
compared with one process, and the tests of what uses torch run. Every finding is kept at once,
and docs/versions.md written. Exit status 1 if something does not hold.
"""

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.entry import enter
from benchmarks.kept import RESULTS, Row, here_and_now, keep_rows, read_rows
from benchmarks.versions.checks import STEPS, go_on, losses_of, prove, test, train
from benchmarks.versions.environments import REFERENCE, TorchEnvironment, build, chosen
from benchmarks.versions.page import holds, write_page
from components.child_process import python_environment
from components.terminal import say

RESULT = RESULTS / "versions.json"
CONVENTION = (
    f"train, resume, moved: largest relative difference of {STEPS} losses of a miniature in "
    "float32 on one thread, from those of the locked torch, of the same run left alone, and of "
    "the locked torch's run left alone; parity in float64 over ten steps; tests: how many"
)
WHOLE, SHORT = ("train", "resume", "moved", "parity", "tests"), ("train", "parity")
Check = Callable[[], Any]


def main(words: list[str]) -> int:
    """Build, try, keep; every environment on its own."""
    recipe, *others = words
    environments = list(chosen([word for word in others if word not in WHOLE]))
    names = {word for word in others if word in WHOLE} or {*WHOLE}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = str(Path(folder) / "state")  # all runs are one user's
        reference = Path(folder) / "reference" / "run"
        reference.parent.mkdir()
        if names & {"train", "moved"}:
            build(REFERENCE)
            train(REFERENCE, recipe, reference)
        for environment in environments:
            build(environment)
            home = Path(folder) / environment.name
            home.mkdir()
            for name, check in checks(environment, recipe, home, reference).items():
                if name in names:
                    keep(environment, {name: found_by(check)})
    rows = [row for row in read_rows(RESULT) if row["name"] in {e.name for e in environments}]
    return 0 if all(map(holds, rows)) else 1


def checks(
    environment: TorchEnvironment, recipe: str, home: Path, reference: Path
) -> dict[str, Check]:
    """List what is asked of an environment, by name."""
    own = home / "own"
    every: dict[str, Check] = {
        "train": lambda: apart(train(environment, recipe, own), losses_of(reference)),
        "resume": lambda: apart(go_on(environment, own, home / "resumed"), losses_of(own)),
        "moved": lambda: apart(
            go_on(environment, reference, home / "moved"), losses_of(reference)
        ),
        "parity": lambda: prove(environment, recipe, home),
        "tests": lambda: test(environment, home),
    }
    return {name: every[name] for name in (WHOLE if environment.whole else SHORT)}


def apart(losses: Sequence[float], expected: Sequence[float]) -> float:
    """Take the largest relative difference; as many steps are wanted."""
    pairs = zip(losses, expected, strict=True)
    return max(abs(loss / other - 1.0) for loss, other in pairs)


def found_by(check: Check) -> Any:
    """Return what a check finds, or the error that it ended in."""
    try:
        return check()
    except (RuntimeError, OSError) as error:
        say(str(error))
        return {"error": str(error)[-1_000:]}


def keep(environment: TorchEnvironment, found: Row) -> None:
    """Put what was found beside what is known of this environment, and write the page."""
    known = {row["name"]: row for row in read_rows(RESULT)}
    row = known.get(environment.name, {"name": environment.name, "whole": environment.whole})
    now = here_and_now(("lightning",))
    now["versions"] |= builds(environment)
    keep_rows(RESULT, CONVENTION, [row | found | now], lambda row: [row["name"]])
    write_page(read_rows(RESULT))


def builds(environment: TorchEnvironment) -> dict[str, str]:
    """Describe which Python and which build of torch an environment has."""
    asked = "import platform, torch; print(platform.python_version(), torch.__version__)"
    done = subprocess.run(
        [environment.program, "-c", asked],
        env=python_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(("python", "torch"), done.stdout.split(), strict=True))


if __name__ == "__main__":
    enter(main, least=1)
