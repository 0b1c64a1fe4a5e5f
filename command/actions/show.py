"""Print the composed, checked recipe, with what follows from it."""

import json
import sys
from collections.abc import Mapping
from itertools import groupby

import yaml
from rich.console import Console
from rich.table import Table

from command.arguments import Arguments
from command.citation import citations
from command.compose import compose_recipe
from command.mixture_text import mixture_lines
from command.outcome import Outcome
from components.spec.recipe import Recipe
from components.spec.warnings import warnings_of


def run(arguments: Arguments) -> Outcome:
    """Print YAML and tables, or one JSON object; with ``cite=true`` the BibTeX alone."""
    recipe = compose_recipe(arguments)
    if arguments.cite:
        _print_citations(citations(recipe), arguments.output)
        return Outcome()
    for warning in warnings_of(recipe):
        sys.stderr.write(f"warning: {warning}\n")
    if arguments.output == "json":
        sys.stdout.write(json.dumps(as_json(recipe)) + "\n")
    else:
        _print(recipe)
    return Outcome()


def _print_citations(works: Mapping[str, str], output: str) -> None:
    text = (
        json.dumps({"works": works}) + "\n" if output == "json" else "\n".join(works.values())
    )
    sys.stdout.write(text)


def as_json(recipe: Recipe) -> dict[str, object]:
    """Return the resolved tree and the derived numbers, as ``output=json`` promises them."""
    return {
        "recipe": recipe.model_dump(mode="json"),
        "derived": recipe.derived.model_dump(mode="json"),
        "fingerprint": recipe.fingerprint(),
    }


def _print(recipe: Recipe) -> None:
    tree = recipe.model_dump(mode="json")
    published, assumed = tree.pop("published"), tree.pop("assumed")
    sys.stdout.write(yaml.safe_dump(tree, sort_keys=False, width=110, allow_unicode=True))
    sys.stdout.writelines(f"{line}\n" for line in mixture_lines(recipe))
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 110)
    console.print()
    console.print(_derived_table(recipe))
    table = Table("published", "value", "unit", "source", box=None, title_justify="left")
    for name, item in published.items():
        table.add_row(name, _number(item["value"]), item["unit"], item["source"])
    console.print(table)
    table = Table("assumed (never published)", "value", "reason", box=None)
    for name, item in assumed.items():
        value = item["value"]
        table.add_row(
            name,
            f"{len(value)} values" if isinstance(value, dict) else _number(value),
            item["reason"],
        )
    console.print(table)


def _derived_table(recipe: Recipe) -> Table:
    derived = recipe.derived
    table = Table("derived", "", box=None)
    for name, count in derived.parameters.model_dump().items():
        table.add_row(f"{name} parameters", f"{count:,}")
    table.add_row("tokens a step", f"{derived.tokens_per_step:,}")
    table.add_row("samples a step", f"{derived.samples_per_step:,}")
    table.add_row("steps", f"{derived.steps:,}")
    table.add_row("ranks", f"{derived.ranks:,}")
    table.add_row("microbatches a step and rank", f"{derived.microbatches_per_step:,}")
    table.add_row("layers of each pipeline stage", _runs(derived.layers_by_stage))
    table.add_row("FLOPs a token, full attention", f"{derived.flops_per_token.full:,}")
    table.add_row("FLOPs a token, causal attention", f"{derived.flops_per_token.causal:,}")
    table.add_row("fingerprint", recipe.fingerprint())
    return table


def _runs(counts: tuple[int, ...]) -> str:
    """Write equal neighbours once: ``5, 10 x 6, 5``."""
    runs = [(count, len(list(equal))) for count, equal in groupby(counts)]
    return ", ".join(f"{n} x {count}" if n > 1 else f"{count}" for count, n in runs)


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
