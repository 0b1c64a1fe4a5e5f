"""Does this tree print, plan, render and train what an earlier commit did?

The commit is checked out beside this tree. For each recipe, both answer the same command lines:
`show` of the miniature and the full run, the plan as JSON, and the job scripts of the home
cluster and of two others. `losses` trains both miniatures for ten steps on the same prepared
data. Paths of the trees are replaced, nothing else. Every difference is printed; the exit
status is 1 if there is one. Texts of all recipes take some ten minutes, losses two hours.

    python -m benchmarks.versions.compare_commits COMMIT [KIND ...] [RECIPE ...]

Kinds are show, plan, scripts and losses.
"""

import difflib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.entry import enter
from benchmarks.kept import ROOT
from components.errors import RecipeError
from components.terminal import say

KINDS = ("show", "plan", "scripts", "losses")
OTHER_CLUSTERS = 2
STEPS = 10
LONGEST_TRAINING_SECONDS = 900
# Run in either tree: a command line of JSON per line in, what it printed and returned out.
DRIVER = """
import contextlib, io, json, sys
from command.main import main
for line in sys.stdin:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        status = main(json.loads(line))
    print(json.dumps([int(status), printed.getvalue()]), flush=True)
"""


def list_commands(kind: str, recipe: str, homes: dict[str, str]) -> Iterator[list[str]]:
    """List the command lines that are compared for one recipe."""
    home, clusters = homes[recipe], sorted({*homes.values()})
    start = clusters.index(home)
    base = [f"recipe={recipe}"]
    if kind == "show":
        yield [*base, "action=show"]
        yield [*base, "action=show", "scale=full"]
    if kind == "plan":
        yield [*base, f"cluster={home}", "action=plan", "output=json"]
    if kind == "scripts":
        for cluster in (clusters[start:] + clusters[:start])[: 1 + OTHER_CLUSTERS]:
            yield [*base, f"cluster={cluster}", "action=render", "site.account=kitchen"]


def answer(
    tree: Path, commands: Sequence[Sequence[str]], config: Path
) -> list[tuple[int, str]]:
    """Return the exit status and the output of each command in a tree."""
    lines = "".join(json.dumps(list(command)) + "\n" for command in commands)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=tree,
        env=os.environ | {"XDG_CONFIG_HOME": str(config), "COLUMNS": "100"},
        input=lines,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [(status, text.replace(str(tree), "ROOT")) for status, text in rows]


def train(tree: Path, recipe: str, folder: Path) -> list[float]:
    """Return the first losses of a miniature; the run is then ended."""
    run = folder / f"{recipe}-{len(list(folder.iterdir()))}"
    words = [f"recipe={recipe}", f"run={run}", f"data.folder={folder / 'data'}"]
    process = subprocess.Popen(
        [sys.executable, "run.py", *words], cwd=tree, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    last = time.monotonic() + LONGEST_TRAINING_SECONDS
    losses: list[float] = []
    while len(losses) < STEPS and time.monotonic() < last and process.poll() is None:
        time.sleep(0.5)
        losses = read_losses(run)
    process.terminate()
    _, errors = process.communicate()
    losses = read_losses(run)
    if len(losses) < STEPS and process.returncode not in {0, 75}:
        raise RuntimeError(f"{recipe}: {errors[-2_000:]}")
    return losses[:STEPS]


def read_losses(run: Path) -> list[float]:
    """Read the losses of the steps that a run has logged so far."""
    try:
        lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
        entries = [json.loads(line) for line in lines]
    except (OSError, ValueError):  # not there yet, or half a line
        return []
    return [entry["loss"] for entry in entries if entry["kind"] == "step"]


def read_homes() -> dict[str, str]:
    """Read the home cluster of each recipe of this tree."""
    from command.arguments import read_point
    from command.composition.compose import compose_recipe

    names = sorted(file.stem for file in (ROOT / "recipes").glob("**/*.yaml"))
    return {name: compose_recipe(read_point([f"recipe={name}"])).home for name in names}


def compare_texts(
    trees: tuple[Path, Path],
    kinds: Sequence[str],
    recipes: Sequence[str],
    homes: dict[str, str],
) -> int:
    """Print each difference of the answers, and return their number."""
    commands = [
        command
        for recipe in recipes
        for kind in kinds
        for command in list_commands(kind, recipe, homes)
    ]
    with tempfile.TemporaryDirectory() as config:
        before, after = (answer(tree, commands, Path(config)) for tree in trees)
    num_different = 0
    for command, old, new in zip(commands, before, after, strict=True):
        if old == new:
            continue
        num_different += 1
        say(f"{' '.join(command)}: exit status {old[0]} before, {new[0]} now")
        lines = difflib.unified_diff(old[1].splitlines(), new[1].splitlines(), n=0, lineterm="")
        say("\n".join(list(lines)[2:22]))
    say(f"{len(commands)} command lines, {num_different} different")
    return num_different


def compare_losses(trees: tuple[Path, Path], recipes: Sequence[str]) -> int:
    """Print each miniature whose first losses differ, and return their number."""
    num_different = 0
    for recipe in recipes:
        with tempfile.TemporaryDirectory() as folder:
            before, after = (train(tree, recipe, Path(folder)) for tree in trees)
        same = before == after and len(before) == STEPS
        num_different += not same
        say(f"{recipe}: {'the same losses' if same else f'{before} before, {after} now'}")
    say(f"{len(recipes)} miniatures, {num_different} different")
    return num_different


def main(words: list[str]) -> int:
    """Compare what the words choose; everything without any."""
    commit, *chosen = words
    homes = read_homes()
    kinds = [kind for kind in KINDS if kind in chosen] or [*KINDS]
    if unknown := [word for word in chosen if word not in {*KINDS, *homes}]:
        raise RecipeError(unknown[0], "is neither a kind nor a recipe", f"kinds: {KINDS}")
    recipes = [name for name in homes if name in chosen] or [*homes]
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(other), commit], check=True)
        try:
            different = compare_texts((other, ROOT), kinds, recipes, homes)
            if "losses" in kinds:
                different += compare_losses((other, ROOT), recipes)
        finally:
            subprocess.run([*git, "remove", "--force", str(other)], check=True)
    return int(different > 0)


if __name__ == "__main__":
    enter(main, least=1)
