"""What a run of a bundle has in common with the one that was packed, and what it has not."""

from collections.abc import Iterator
from pathlib import Path

from command.arguments import Arguments
from command.differences_text import shown, verdict
from command.lock_file import Received, read_given
from command.sides import losses_in, side_of_run
from components.sharing.differences import compare, side_of
from components.sharing.lock import Lock
from components.spec.groups import Group
from components.train.run_folder import RunFolder

JUDGED = (Group.MATHEMATICS, Group.LAYOUT, Group.MACHINE)


def bundle_of(arguments: Arguments) -> Lock | None:
    """Read the bundle that the recipe came in, if it came in one."""
    if arguments.recipe is None or not arguments.recipe.endswith(".yaml"):
        return None
    given = read_given(Path(arguments.recipe).expanduser())
    return given.lock if isinstance(given, Received) else None


def told_before(bundle: Lock, run: Path) -> Iterator[str]:
    """Say what of the packed recipe, versions and data is otherwise here."""
    there, here = side_of(bundle, "bundle"), side_of_run(run)
    scales = [side.tree["scale"]["name"] for side in (there, here)]
    if scales[0] != scales[1]:
        yield f"bundle: packed at scale={scales[0]}, this is scale={scales[1]}: not compared"
        return
    found = compare(there, here)
    yield f"bundle: {verdict(found)} as where it was packed"
    for group in JUDGED:
        for key in shown(found, group):
            a, b = found[group][key]
            yield f"bundle: {key}: {a} there, {b} here"
    if bundle.data == "none":
        yield "bundle: has no hashes of the data: whether they are the same, nobody can tell"


def told_after(bundle: Lock, run: Path) -> Iterator[str]:
    """Say whether the losses are those of the run that was packed."""
    here = losses_in(RunFolder(run))
    if isinstance(bundle.losses, str) or here is None:
        return
    if here == bundle.losses:
        yield f"bundle: the losses of all {here.steps} steps are the packed run's, bit by bit"
        return
    there = bundle.losses
    yield (
        f"bundle: other losses: the last of {there.steps} is {there.last:.6f} there, of "
        f"{here.steps} it is {here.last:.6f} here"
    )
