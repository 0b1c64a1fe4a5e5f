"""Print the composed, checked recipe and what follows from it, or the works that it repeats."""

from pathlib import Path

import yaml
from rich.table import Table

from command.arguments import ROOT, Arguments
from command.composition.compose import compose
from command.composition.conf_groups import compose_defaults
from command.outcome import print_result
from command.recipe_summary import (
    layers_text,
    mixture_lines,
    phase_lines,
    print_summary,
)
from command.remarks import remarks
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.config.rules.check import warnings_of
from components.config.suggestions import nearest
from components.errors import RecipeError
from components.terminal import console, say, tell

WORKS = ROOT / "works"


def citations(recipe: Recipe, folder: Path = WORKS) -> dict[str, str]:
    """Map each work that the recipe names to its BibTeX entry.

    Raises:
        RecipeError: the recipe names none, or one that there is no file of.
    """
    known = sorted(file.stem for file in folder.glob("*.bib"))
    if not recipe.works:
        problem = f"the recipe {recipe.name!r} names no work to cite"
        remedy = f"name some of {', '.join(known)}: works=[{known[0]}]"
        raise RecipeError("works", problem, remedy)
    for name in recipe.works:
        if name not in known:
            raise RecipeError("works", f"there is no work {name!r}", nearest(name, known))
    return {name: (folder / f"{name}.bib").read_text("utf-8") for name in recipe.works}


def run(arguments: Arguments) -> None:
    """Print one screen, with ``full=true`` all, or one JSON object; or the BibTeX alone."""
    composed = compose(arguments)
    recipe = composed.recipe
    if arguments.cite:
        works = citations(recipe)
        text = "\n".join(works.values()).removesuffix("\n")
        print_result(arguments.output, {"works": works}, lambda: tell(text))
        return
    for warning in warnings_of(recipe):
        say(f"warning: {warning}")
    for remark in remarks(composed, arguments):
        say(remark)

    def show() -> None:
        if arguments.full:
            print_recipe(recipe)
        else:
            print_summary(recipe, compose_defaults(), arguments.all_values)

    print_result(arguments.output, as_json(recipe), show)


def as_json(recipe: Recipe) -> dict[str, object]:
    """Return the resolved tree and the derived numbers, as ``output=json`` promises them."""
    found: dict[str, object] = {
        "recipe": recipe.model_dump(mode="json"),
        "derived": recipe.derived.model_dump(mode="json"),
        "fingerprint": compute_fingerprint(recipe),
    }
    if recipe.phases:
        found["phases"] = [span._asdict() for span in recipe.clock.spans]
    return found


def print_recipe(recipe: Recipe) -> None:
    """Print the tree as YAML, then what follows from it and what stands behind it."""
    tree = recipe.model_dump(mode="json")
    published, assumed = tree.pop("published"), tree.pop("assumed")
    text = yaml.safe_dump(tree, sort_keys=False, width=110, allow_unicode=True)
    tell(text.removesuffix("\n"))
    for line in (*phase_lines(recipe), *mixture_lines(recipe)):
        tell(line)
    out = console(width=110)
    out.print()
    out.print(_derived_table(recipe))
    table = Table("published", "value", "unit", "source", box=None, title_justify="left")
    for name, item in published.items():
        table.add_row(name, _number(item["value"]), item["unit"], item["source"])
    out.print(table)
    table = Table("assumed (not in the sources)", "value", "reason", box=None)
    for name, item in assumed.items():
        value = item["value"]
        text = f"{len(value)} values" if isinstance(value, dict) else _number(value)
        table.add_row(name, text, item["reason"])
    out.print(table)


def _derived_table(recipe: Recipe) -> Table:
    derived = recipe.derived
    parameters = derived.parameters.model_dump().items()
    rows: dict[str, object] = {
        **{f"{name} parameters": count for name, count in parameters},
        "tokens a step": derived.tokens_per_step,
        "samples a step": derived.samples_per_step,
        "steps": derived.steps,
        "ranks": derived.ranks,
        "microbatches a step and rank": derived.microbatches_per_step,
        "layers of each pipeline stage": layers_text(derived),
        "FLOPs a token, full attention": derived.flops_per_token.full,
        "FLOPs a token, causal attention": derived.flops_per_token.causal,
        "fingerprint": compute_fingerprint(recipe),
    }
    table = Table("derived", "", box=None)
    for name, value in rows.items():
        table.add_row(name, _number(value))
    return table


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
