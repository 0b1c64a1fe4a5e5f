"""Show a recipe and the numbers derived from it, or the BibTeX of the works it reproduces."""

import yaml

from command.arguments import ROOT, Arguments
from command.composition.compose import compose_run
from command.composition.conf_groups import compose_defaults
from command.outcome import print_result
from command.recipe_summary import mixture_lines, phase_lines, print_summary
from command.remarks import iter_remarks
from components.config.fingerprint import compute_fingerprint
from components.config.recipe import Recipe
from components.config.rules.check import warnings_of
from components.config.suggestions import suggest_similar
from components.errors import RecipeError
from components.terminal import log_line, print_output

WORKS = ROOT / "works"


def read_citations(recipe: Recipe) -> dict[str, str]:
    """Map each work that the recipe names to its BibTeX entry."""
    known = sorted(file.stem for file in WORKS.glob("*.bib"))
    if not recipe.citations:
        problem = f"the recipe {recipe.name!r} has no citations"
        remedy = f"choose from {', '.join(known)}: citations=[{known[0]}]"
        raise RecipeError("citations", problem, remedy)
    for name in recipe.citations:
        if name not in known:
            raise RecipeError(
                "citations", f"unknown work: {name!r}", suggest_similar(name, known)
            )
    return {name: (WORKS / f"{name}.bib").read_text("utf-8") for name in recipe.citations}


def run(arguments: Arguments) -> None:
    """Print a summary, the full recipe (``full=true``), one JSON object, or only the BibTeX."""
    composed = compose_run(arguments)
    recipe = composed.recipe
    if arguments.cite:
        works = read_citations(recipe)
        text = "\n".join(works.values()).removesuffix("\n")
        print_result(arguments.output, {"citations": works}, lambda: print_output(text))
        return
    for warning in warnings_of(recipe):
        log_line(f"warning: {warning}")
    for remark in iter_remarks(composed, arguments):
        log_line(remark)

    def print_chosen() -> None:
        if arguments.full:
            print_recipe(recipe)
        else:
            print_summary(recipe, compose_defaults(), arguments.all_values)

    print_result(arguments.output, as_json(recipe), print_chosen)


def as_json(recipe: Recipe) -> dict[str, object]:
    """Return the resolved tree and the derived numbers, the object of ``output=json``."""
    tree: dict[str, object] = {
        "recipe": recipe.model_dump(mode="json"),
        "derived": recipe.derived_numbers.model_dump(mode="json"),
        "fingerprint": compute_fingerprint(recipe),
    }
    if recipe.phases:
        tree["phases"] = [span._asdict() for span in recipe.token_clock.spans]
    return tree


def print_recipe(recipe: Recipe) -> None:
    """Print the resolved recipe and derived numbers as YAML, then phases and mixture."""
    tree = as_json(recipe)
    text = yaml.safe_dump(
        {**recipe.model_dump(mode="json"), "derived": tree["derived"]},
        sort_keys=False,
        width=110,
        allow_unicode=True,
    )
    print_output(f"{text}fingerprint: {tree['fingerprint']}")
    for line in (*phase_lines(recipe), *mixture_lines(recipe)):
        print_output(f"# {line}")
