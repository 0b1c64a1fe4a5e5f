"""Comparisons: the two sides (recipe, lock, bundle, run), and their differences as text."""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from command.arguments import Arguments, read_point
from command.composition.compose import compose_recipe
from command.recipe.lock_file import ReceivedLock, read_given
from command.recipe.path_checks import strange_data
from command.words import check_no_recipe, check_recipe_words, keys_of
from components.config.check import read_recipe
from components.config.key_groups import TITLES, KeyGroup, without_profile
from components.config.recipe import Recipe
from components.data.manifest import FILE_NAME
from components.errors import RecipeError
from components.json_file import dump_json
from components.run.folder import RunFolder, existing_run_folder
from components.run.history import run_lines
from components.run.provenance import Software, describe_software
from components.sharing.differences import Found, Side, as_json, compare, side_of
from components.sharing.lock import Lock, Losses, PreparedHashes, losses_of
from components.sharing.prepared import damaged, describe_prepared, find_prepared
from components.terminal import console, say, tell

LONGEST = 60
JUDGED = (KeyGroup.MATHEMATICS, KeyGroup.LAYOUT, KeyGroup.MACHINE)


def read_sides(arguments: Arguments) -> tuple[Side, Side]:
    """Read ``a`` and ``b``; a recipe is composed at the other side's scale, else at full size.

    Raises:
        RecipeError: one is missing, or is nothing that can be compared.
    """
    texts = {"a": str(arguments.a or ""), "b": str(arguments.b or "")}
    for key, text in texts.items():
        if not text:
            raise RecipeError(key, "two sides are compared", "write a=RECIPE b=RECIPE")
    a, b = (_frozen(text, key) for key, text in texts.items())
    if a and b:
        check_no_recipe(keys_of(arguments.words), "a= and b= are both frozen")
    scale = frozen.tree["scale"]["name"] if (frozen := a or b) else "full"
    return (
        a or _composed(texts["a"], arguments, scale, "a"),
        b or _composed(texts["b"], arguments, scale, "b"),
    )


def side_of_run(path: Path, key: str = "run") -> Side:
    """Read a run folder: its recipe, and what it knows of software, data and losses.

    Raises:
        RecipeError: it is no run folder.
    """
    folder = existing_run_folder(path, key)
    recipe = read_recipe(folder.recipe)
    if (strange := strange_data(folder, recipe, {})) is not None:
        say(f"{path}: its data are not looked at: {strange.problem}")
    return Side(
        label=str(path),
        tree=recipe.model_dump(mode="json"),
        software=software_of(folder),
        data=data_of(folder) if strange is None else None,
        losses=losses.model_dump() if (losses := losses_in(folder)) else None,
    )


def side_of_now(recipe: Recipe, label: str, *, reads_data: bool) -> Side:
    """Describe what a recipe rests on here and now; of its data every prepared file is read.

    Raises:
        RecipeError: prepared data without a readable manifest.
    """
    folder = find_prepared(recipe) if reads_data else None
    return Side(
        label=label,
        tree=recipe.model_dump(mode="json"),
        software=describe_software(),
        data=describe_prepared(folder) if folder else None,
        damage=dict(damaged(folder)) if folder else {},
    )


def software_of(folder: RunFolder) -> Software | None:
    """Read what a run was made with; runs of older versions do not say."""
    there = (folder.path / "software.json").exists()
    return folder.read("software.json", Software) if there else None


def data_of(folder: RunFolder) -> PreparedHashes | None:
    """Describe the data that a run read, if they are still where it says."""
    if not (folder.path / "data.json").exists():
        return None
    place = Path(folder.data.folder)
    return describe_prepared(place) if (place / FILE_NAME).is_file() else None


def losses_in(folder: RunFolder) -> Losses | None:
    """Read the loss of each step; of a step that was computed twice, the later one."""
    steps = (one for _, one in run_lines(folder.path, []) if one["kind"] == "step")
    by_step = {one["step"]: float(one["loss"]) for one in steps}
    return losses_of([by_step[step] for step in sorted(by_step)]) if by_step else None


def _frozen(text: str, key: str) -> Side | None:
    """Read a run folder or a lock; None if the text names a recipe."""
    path = Path(text)
    if path.is_dir():
        return side_of_run(path, key)
    if path.suffix != ".yaml" or " " in text:
        return None
    given = read_given(path, key)
    return side_of(given.lock, text) if isinstance(given, ReceivedLock) else None


def _composed(text: str, arguments: Arguments, scale: str, key: str) -> Side:
    """Compose ``NAME [key=value ...]``, with the words that both sides have before them."""
    try:
        name, *own = shlex.split(text)
    except ValueError as error:  # a quotation without an end; no word at all
        remedy = f"write {key}=NAME, or {key}='NAME key=value'"
        raise RecipeError(key, f"{text!r} is no words of a shell: {error}", remedy) from None
    mine = read_point([f"recipe={name}", *own])
    check_recipe_words(keys_of(own), f"{key}=")
    searches = mine.searches or (arguments.searches and "parallelism" not in mine.choices)
    asked = replace(
        mine,
        choices={"scale": scale, **arguments.choices, **mine.choices},
        values={**arguments.values, **mine.values},
        searches=searches,
        within_days=mine.within_days or arguments.within_days if searches else None,
    )
    try:
        return Side(label=text, tree=compose_recipe(asked).model_dump(mode="json"))
    except RecipeError as error:
        path = key if error.path == "recipe" else error.path
        raise RecipeError(path, error.problem, error.remedy) from None


def print_differences(
    a: Side, b: Side, found: Found, notes: Sequence[str], *, output: str = "text"
) -> None:
    """Print a table for each group that has differences, then the verdict and the notes."""
    if output == "json":
        tell(dump_json({**as_json(found), "notes": notes}))
        return
    out = console(width=160)
    for group, title in TITLES.items():
        if not found[group]:
            continue
        table = Table(title=title, box=None, title_justify="left")
        for column in ("key", a.label, b.label):
            table.add_column(column, overflow="fold")
        keys = without_profile(found[group])
        for key in keys:
            table.add_row(key, *map(_short, found[group][key]))
        out.print(table)
        if hidden := len(found[group]) - len(keys):
            out.print(f"and {hidden} keys of the two profiles in conf/cluster/")
        out.print()
    tell(_verdict(found))
    for note in notes:
        tell(f"note: {note}")


def _verdict(found: Found) -> str:
    return ", ".join(f"{'another' if found[one] else 'same'} {one.value}" for one in JUDGED)


def _short(value: object) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def told_before(bundle: Lock, run: Path) -> Iterator[str]:
    """Describe what of the packed recipe, versions and data is otherwise here."""
    there, here = side_of(bundle, "bundle"), side_of_run(run)
    scales = [side.tree["scale"]["name"] for side in (there, here)]
    if scales[0] != scales[1]:
        yield f"bundle: packed at scale={scales[0]}, this is scale={scales[1]}: not compared"
        return
    found = compare(there, here)
    yield f"bundle: {_verdict(found)} as where it was packed"
    for group in JUDGED:
        for key in without_profile(found[group]):
            a, b = found[group][key]
            yield f"bundle: {key}: {a} there, {b} here"
    if bundle.data == "none":
        yield "bundle: has no hashes of the data: whether they are the same, nobody can tell"


def told_after(bundle: Lock, run: Path) -> Iterator[str]:
    """Return whether the losses are those of the run that was packed."""
    there, here = bundle.losses, losses_in(RunFolder(run))
    if isinstance(there, str) or here is None:
        return
    if here == there:
        yield f"bundle: the losses of all {here.steps} steps are the packed run's, bit by bit"
    else:
        yield (
            f"bundle: other losses: the last of {there.steps} is {there.last:.6f} there, of "
            f"{here.steps} it is {here.last:.6f} here"
        )
