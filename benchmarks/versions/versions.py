"""Does the program work with every supported torch? Each has a separate environment.

    python -m benchmarks.versions.versions recipe=NAME [TORCH ...] [CHECK ...]

A TORCH is `2.11.0` or `2.15.0-py3.12`. A CHECK is train, resume, moved, parity or tests. Other
environments and checks keep their results. Environments stay in
`$XDG_CACHE_HOME/kochbuch`, up to 8 GB each. In each environment a miniature trains and resumes
from its checkpoint, a run of the locked torch resumes, tensor ranks and a pipeline are compared
with one process, and the tests of torch code run. Each finding is saved at once and written to
docs/versions.md. Exit status 1 if a check fails.
"""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.entry import run_script
from benchmarks.generated_section import replace_section, table_line
from benchmarks.results_store import (
    RESULTS,
    ROOT,
    ResultRow,
    read_rows,
    run_environment,
    save_rows,
)
from benchmarks.versions import checks
from benchmarks.versions.environments import (
    REFERENCE,
    TorchEnvironment,
    build_environment,
    select_environments,
)
from components.child_process import python_environment
from components.terminal import log_line
from components.versions import LOCKED, PYTHON, TORCH

RESULT = RESULTS / "versions.json"
PAGE = ROOT / "docs" / "versions.md"
# Relative, in float32: releases sum the same numbers in different orders.
MOST_DIFFERENCE = 1e-5
CONVENTION = (
    f"train, resume, moved: largest relative difference of {checks.STEPS} losses of a miniature"
    " in float32 on one thread, from the locked torch, from the same run without interruption, "
    "and from the locked torch's run without interruption; parity in float64 over ten steps"
)
WHOLE, SHORT = ("train", "resume", "moved", "parity", "tests"), ("train", "parity")
Check = Callable[[], Any]
VersionRow = Mapping[str, Any]


def main(words: list[str]) -> int:
    """Build each environment, run its checks and save the findings."""
    recipe, *others = words
    environments = list(select_environments([word for word in others if word not in WHOLE]))
    names = {word for word in others if word in WHOLE} or {*WHOLE}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = str(Path(folder) / "state")  # shared by all runs
        reference = Path(folder) / "reference" / "run"
        reference.parent.mkdir()
        if names & {"train", "moved"}:
            build_environment(REFERENCE)
            checks.train_miniature(REFERENCE, recipe, reference)
        for environment in environments:
            build_environment(environment)
            home = Path(folder) / environment.name
            home.mkdir()
            for name, check in list_checks(environment, recipe, home, reference).items():
                if name in names:
                    save_finding(environment, {name: run_check(check)})
    rows = [row for row in read_rows(RESULT) if row["name"] in {e.name for e in environments}]
    return 0 if all(map(has_passed, rows)) else 1


def list_checks(
    environment: TorchEnvironment, recipe: str, home: Path, reference: Path
) -> dict[str, Check]:
    """Return the checks of an environment by name."""
    own, expected = home / "own", partial(checks.read_losses, reference)
    resume = partial(checks.resume_copy, environment)
    every: dict[str, Check] = {
        "train": lambda: loss_gap(checks.train_miniature(environment, recipe, own), expected()),
        "resume": lambda: loss_gap(resume(own, home / "resumed"), checks.read_losses(own)),
        "moved": lambda: loss_gap(resume(reference, home / "moved"), expected()),
        "parity": lambda: checks.prove_layouts(environment, recipe, home),
        "tests": lambda: checks.run_tests(environment),
    }
    return {name: every[name] for name in (WHOLE if environment.whole else SHORT)}


def loss_gap(losses: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest relative difference of equally many losses."""
    pairs = zip(losses, expected, strict=True)
    return max(abs(loss / other - 1.0) for loss, other in pairs)


def run_check(check: Check) -> Any:
    """Return the finding of a check, or its error."""
    try:
        return check()
    except (RuntimeError, OSError) as error:
        log_line(str(error))
        return {"error": str(error)[-1_000:]}


def save_finding(environment: TorchEnvironment, finding: ResultRow) -> None:
    """Add a finding to the row of its environment, and write the page."""
    stored = {row["name"]: row for row in read_rows(RESULT)}
    row = stored.get(environment.name, {"name": environment.name, "whole": environment.whole})
    now = run_environment(("lightning",))
    now["versions"] |= read_builds(environment)
    save_rows(RESULT, CONVENTION, [row | finding | now], lambda row: [row["name"]])
    write_page(read_rows(RESULT))


def read_builds(environment: TorchEnvironment) -> dict[str, str]:
    """Return the versions of Python and torch in an environment."""
    version_code = "import platform, torch; print(platform.python_version(), torch.__version__)"
    process = subprocess.run(
        [environment.program, "-c", version_code],
        env=python_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(("python", "torch"), process.stdout.split(), strict=True))


def write_page(rows: Sequence[VersionRow]) -> None:
    """Replace the table of the page by the table of all rows."""
    text = PAGE.read_text("utf-8")
    page = replace_section(text, "versions", "make versions", render_table(rows))
    PAGE.write_text(page, "utf-8")


def render_table(rows: Sequence[VersionRow]) -> str:
    """Return the supported range and a table of the rows, sorted by version."""
    heads = "Torch", "Python", "Trains", "Resumes", f"Resumes from {LOCKED}", "Parity", "Tests"
    lines = [heads, ("---",) * 2 + ("---:",) * 5, *map(row_cells, sorted(rows, key=sort_key))]
    body = "".join(map(table_line, lines))
    return f"\n**{TORCH}, {PYTHON}**\n\n{body}\n{''.join(failure_lines(rows))}"


def sort_key(row: VersionRow) -> tuple[int, ...]:
    """Return the sort key of a row: torch, then Python."""
    torch, _, python = row["name"].partition("-py")
    return tuple(int(part) for part in (*torch.split("."), *python.split(".")))


def row_cells(row: VersionRow) -> tuple[str, ...]:
    """Return the cells of a row."""
    return (
        *(row["versions"][name] for name in ("torch", "python")),
        *(_cell(row, name, _describe_difference) for name in ("train", "resume", "moved")),
        _cell(row, "parity", _describe_parity),
        _cell(row, "tests", _describe_tests),
    )


def _cell(row: VersionRow, name: str, describe: Callable[[Any], str]) -> str:
    if name not in row:
        return "-"
    return "FAILS" if is_error(row[name]) else describe(row[name])


def _describe_difference(difference: float) -> str:
    return "equal" if difference == 0.0 else f"{difference:.0e}"


def _describe_parity(proofs: Sequence[VersionRow]) -> str:
    worst = max(proof[part] for proof in proofs for part in ("loss", "gradient", "weight"))
    return f"{worst:.0e}" + ("" if all(proof["holds"] for proof in proofs) else " FAILS")


def _describe_tests(tests: VersionRow) -> str:
    return f"{tests['passed']:,} passed, {tests['skipped']} skipped, {tests['failed']} failed"


def is_error(finding: Any) -> bool:
    """Return whether a check ended with an error instead of a finding."""
    return isinstance(finding, Mapping) and "error" in finding


def failure_lines(rows: Sequence[VersionRow]) -> Iterator[str]:
    """Yield a line per failed test."""
    for row in sorted(rows, key=sort_key):
        for name in row.get("tests", {}).get("failures", []):
            yield f"- {row['name']}: `{name}` fails\n"


def has_passed(row: VersionRow) -> bool:
    """Return whether all checks of a row passed."""
    if any(map(is_error, row.values())):
        return False
    return (
        row.get("train", 0.0) <= MOST_DIFFERENCE
        and row.get("resume", 0.0) == 0.0
        and row.get("moved", 0.0) <= MOST_DIFFERENCE
        and all(proof["holds"] for proof in row.get("parity", []))
        and row.get("tests", {"failed": 0})["failed"] == 0
    )


if __name__ == "__main__":
    run_script(main, min_words=1)
