"""Plant each fault of ``mutants.yaml`` in a copy of the tree and see its test fail.

    python -m tests.mutants [WORD ...]     faults whose description has a word; without any, all

A test that passes with its fault planted proves less than it says. The status is 1 if one does.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from benchmarks.generated_section import split_section
from components.terminal import log_line, print_output
from tests.mutants.faults import ROOT, Fault, read_faults

PAGE = ROOT / "docs" / "testing.md"
WORKERS = 1


def main(words: Sequence[str]) -> int:
    """Try the faults two at a time, print a line for each, and write the page's table."""
    faults = [one for one in read_faults() if not words or any(w in one.fault for w in words)]
    with tempfile.TemporaryDirectory() as home:
        copies: Queue[Path] = Queue()
        for number in range(WORKERS):
            copies.put(copy_tree(Path(home) / str(number)))
        first = copies.get()
        if run_tests(first, sorted({one.test for one in faults})) != 0:
            log_line("without any fault the tests do not pass")
            return 2
        copies.put(first)
        with ThreadPoolExecutor(WORKERS) as pool:
            caught = list(pool.map(lambda fault: plant(fault, copies), faults))
    print_output(f"{sum(caught)} of {len(faults)} faults are caught")
    if not words:
        head, _, rest = split_section(PAGE.read_text("utf-8"), "mutants", "make mutants")
        PAGE.write_text(head + table(faults, caught) + rest, "utf-8")
    return 0 if all(caught) else 1


def copy_tree(target: Path) -> Path:
    """Copy what git tracks, as it lies here, beside the environment."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().splitlines():
        if (ROOT / name).exists():  # a link, too: the recipes are a group of conf/
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    (target / ".venv").symlink_to(ROOT / ".venv")
    return target


def run_tests(tree: Path, tests: Sequence[str]) -> int:
    """Return pytest's exit status: 0 where all pass, 1 where one fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode > 1:  # nothing was tried: the words, or the collection, are wrong
        print_output(done.stdout[-2000:] + done.stderr[-2000:])
    return done.returncode


def plant(fault: Fault, copies: "Queue[Path]") -> bool:
    """Say whether the fault's test fails, and not merely cannot be collected."""
    tree, began = copies.get(), time.perf_counter()
    file = tree / fault.file
    sound = file.read_text("utf-8")
    try:
        file.write_text(fault.planted(sound), "utf-8")
        status = run_tests(tree, fault.pytest_words)
    finally:
        file.write_text(sound, "utf-8")
        copies.put(tree)
    seconds = time.perf_counter() - began
    says = {0: "SURVIVES", 1: "caught"}.get(status, f"pytest ends with {status}")
    print_output(f"{says:<10} {seconds:5.1f} s  {fault.fault}")
    return status == 1


def table(faults: Sequence[Fault], caught: Sequence[bool]) -> str:
    """Lay out each fault, where it is planted, and the test that catches it."""
    lines = ["| Fault | Planted in | Caught by |", "|---|---|---|"]
    for fault, found in zip(faults, caught, strict=True):
        test = f"`{fault.test.removeprefix('tests/')}`" if found else "**nothing**"
        lines.append(f"| {fault.fault} | `{fault.file}` | {test} |")
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
