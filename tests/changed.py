"""Print the test files of what a diff touches: ``make test ROOMS=changed``.

    python -m tests.changed [BASE]     compared with BASE; without it, what is not committed yet

A changed module selects the tests beside it in the mirrored folder, and every test that imports
it, or imports a module that does. Text selects the tests of its place. What all tests rest on,
such as ``pyproject.toml``, selects all.
"""

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("command", "cluster", "components", "data_prep", "benchmarks", "tests")
ALWAYS = "tests/house"
# Files that no module imports, by how their path begins, and the tests that read them.
READ_BY = {
    "recipes/": ("tests/recipes", "tests/components/config", "tests/components/planner"),
    "conf/": ("tests/recipes", "tests/components/config", "tests/cluster"),
    "corpora/": ("tests/corpora", "tests/data_prep"),
    "cluster/": ("tests/cluster", "tests/recipes"),
    "docs/": (),
    "benchmarks/": ("tests/benchmarks",),
    "tests/recipes/": ("tests/recipes",),
    "tests/attack/": ("tests/attack",),
    "tests/cluster/": ("tests/cluster",),
    "tests/mutants/": ("tests/mutants",),
    ".gitignore": (),
}


def main(words: Sequence[str]) -> None:
    """Print the files, each on a line."""
    print(*select(list_changed(*words)), sep="\n")  # noqa: T201  # its output


def list_changed(base: str = "HEAD") -> list[str]:
    """List the files that differ from a commit, and those that git does not know yet."""
    commands = [
        ["git", "diff", "--name-only", "--no-renames", base, "--"],
        ["git", "ls-files", "--others", "--exclude-standard"],
    ]
    return [
        name
        for command in commands
        for name in subprocess.run(
            command, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.splitlines()
    ]


def select(changed: Iterable[str]) -> list[str]:
    """Return the tests of some files, as paths that pytest takes."""
    found, modules = {ALWAYS}, set[str]()
    for name in changed:
        if name.endswith(".py") and name.partition("/")[0] in PACKAGES:
            modules.add(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        elif (places := _read_by(name)) is not None:
            found.update(places)
        else:
            return ["tests"]
    found.update(find_tests(modules))
    return sorted(
        one for one in found if not any(one.startswith(f"{other}/") for other in found)
    )


def _read_by(name: str) -> Sequence[str] | None:
    """Return the tests that read a file, or nothing where that may be all of them."""
    if name.endswith(".md"):
        return ()
    starts = [start for start in READ_BY if name.startswith(start)]
    return READ_BY[max(starts, key=len)] if starts else None


def find_tests(modules: set[str], *, hops: int = 2) -> set[str]:
    """Return the folders that mirror the modules, and the tests up to ``hops`` imports away."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    near = set(modules)
    for _ in range(hops):
        known = near & graph.modules
        near |= {user for one in known for user in graph.find_modules_that_directly_import(one)}
    files = {f"{one.replace('.', '/')}.py" for one in near if one.startswith("tests.")}
    tests = {one for one in files if Path(one).name.startswith("test_")}
    return set(map(_mirror, modules)) - {""} | {one for one in tests if (ROOT / one).is_file()}


def _mirror(module: str) -> str:
    """Return the folder with the tests of a module, or nothing where there is none."""
    path = module.replace(".", "/")
    folder = path if (ROOT / path).is_dir() else path.rpartition("/")[0]
    tests = f"tests/{folder}"
    return tests if folder and (ROOT / tests).is_dir() else ""


if __name__ == "__main__":
    main(sys.argv[1:])
