"""Compare two sides (recipe, lock, bundle or run) and print the differences."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from command.arguments import Arguments, read_point
from command.composition.compose import compose_recipe
from command.recipe.lock_file import ReceivedLock, read_given
from command.recipe.path_checks import untrusted_data
from command.words import check_no_recipe, check_recipe_words, keys_of
from components.config.check import read_recipe
from components.config.key_groups import TITLES, KeyGroup, without_profile
from components.config.recipe import Recipe
from components.data.manifest import FILE_NAME
from components.errors import RecipeError
from components.json_file import dump_json
from components.report.tables import Grid, terminal_table
from components.run.folder import RunFolder, existing_run_folder
from components.run.history import run_lines
from components.run.provenance import Software, describe_software
from components.sharing.differences import DifferenceGroups, Side, as_json, side_of
from components.sharing.lock import Losses, PreparedHashes, losses_of
from components.sharing.prepared import describe_prepared, find_damaged, find_prepared
from components.terminal import create_console, log_line, print_output

LONGEST = 60
JUDGED = (KeyGroup.MATHEMATICS, KeyGroup.LAYOUT, KeyGroup.MACHINE)


def read_sides(arguments: Arguments) -> tuple[Side, Side]:
    """Read ``a`` and ``b``; compose a recipe at the other side's scale, else at full size."""
    texts = {"a": str(arguments.a or ""), "b": str(arguments.b or "")}
    for key, text in texts.items():
        if not text:
            raise RecipeError(key, "action=diff requires a= and b=", "write a=RECIPE b=RECIPE")
    a, b = (_frozen(text, key) for key, text in texts.items())
    if a and b:
        check_no_recipe(keys_of(arguments.words), "a= and b= are both runs or locks")
    scale = frozen.tree["scale"]["name"] if (frozen := a or b) else "full"
    return (
        a or _composed(texts["a"], arguments, scale, "a"),
        b or _composed(texts["b"], arguments, scale, "b"),
    )


def side_of_run(path: Path, key: str = "run") -> Side:
    """Read a run folder: its recipe, and its records of software, data and losses."""
    folder = existing_run_folder(path, key)
    recipe = read_recipe(folder.recipe)
    if (untrusted := untrusted_data(folder, recipe, {})) is not None:
        log_line(f"{path}: data not compared: {untrusted.problem}")
    return Side(
        label=str(path),
        tree=recipe.model_dump(mode="json"),
        software=software_of(folder),
        data=data_of(folder) if untrusted is None else None,
        losses=losses.model_dump() if (losses := losses_in(folder)) else None,
    )


def side_of_now(recipe: Recipe, *, reads_data: bool) -> Side:
    """Describe a recipe's current state, and read every prepared file if ``reads_data``."""
    folder = find_prepared(recipe) if reads_data else None
    return Side(
        label="now",
        tree=recipe.model_dump(mode="json"),
        software=describe_software(),
        data=describe_prepared(folder) if folder else None,
        damage=dict(find_damaged(folder)) if folder else {},
    )


def software_of(folder: RunFolder) -> Software | None:
    """Read the run's software record, or None for runs of older versions."""
    there = (folder.path / "software.json").exists()
    return folder.read_file("software.json", Software) if there else None


def data_of(folder: RunFolder) -> PreparedHashes | None:
    """Describe the data that a run read, or return None if they are no longer in place."""
    if not (folder.path / "data.json").exists():
        return None
    place = Path(folder.data_record.folder)
    return describe_prepared(place) if (place / FILE_NAME).is_file() else None


def losses_in(folder: RunFolder) -> Losses | None:
    """Read the loss of each step. If a step was computed twice, the later loss counts."""
    steps = (record for _, record in run_lines(folder.path, []) if record["kind"] == "step")
    by_step = {record["step"]: float(record["loss"]) for record in steps}
    return losses_of([by_step[step] for step in sorted(by_step)]) if by_step else None


def _frozen(text: str, key: str) -> Side | None:
    """Read a run folder or a lock. Return None if the text names a recipe."""
    path = Path(text)
    if path.is_dir():
        return side_of_run(path, key)
    if path.suffix != ".yaml" or " " in text:
        return None
    received = read_given(path, key)
    return side_of(received.lock, text) if isinstance(received, ReceivedLock) else None


def _composed(text: str, arguments: Arguments, scale: str, key: str) -> Side:
    """Compose ``NAME [key=value ...]`` with the command's words that apply to both sides."""
    try:
        name, *own = shlex.split(text)
    except ValueError as error:  # an unclosed quote, or no word
        remedy = f"write {key}=NAME, or {key}='NAME key=value'"
        raise RecipeError(key, f"cannot split {text!r} into words: {error}", remedy) from None
    mine = read_point([f"recipe={name}", *own])
    check_recipe_words(keys_of(own), f"{key}=")
    searches = mine.searches or (arguments.searches and "parallelism" not in mine.choices)
    point = replace(
        mine,
        choices={"scale": scale, **arguments.choices, **mine.choices},
        values={**arguments.values, **mine.values},
        searches=searches,
        within_days=mine.within_days or arguments.within_days if searches else None,
    )
    try:
        return Side(label=text, tree=compose_recipe(point).model_dump(mode="json"))
    except RecipeError as error:
        path = key if error.path == "recipe" else error.path
        raise RecipeError(path, error.problem, error.remedy) from None


def print_differences(
    a: Side,
    b: Side,
    differences: DifferenceGroups,
    notes: Sequence[str],
    *,
    output: str = "text",
) -> None:
    """Print a table for each group that has differences, then the verdict and the notes."""
    if output == "json":
        print_output(dump_json({**as_json(differences), "notes": notes}))
        return
    out = create_console(width=160)
    for group, title in TITLES.items():
        if not differences[group]:
            continue
        keys = without_profile(differences[group])
        rows = [(key, *map(_short, differences[group][key])) for key in keys]
        columns = ("key", a.label, b.label)
        grid = Grid(columns=columns, rows=rows, title=title, text_columns=3)
        out.print(terminal_table(grid))
        if hidden := len(differences[group]) - len(keys):
            out.print(f"and {hidden} more keys of the two profiles in conf/cluster/")
        out.print()
    verdicts = [f"{'different' if differences[g] else 'same'} {g.value}" for g in JUDGED]
    print_output(", ".join(verdicts))
    for note in notes:
        print_output(f"note: {note}")


def _short(value: object) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
