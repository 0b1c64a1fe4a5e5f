"""Write a page for a proposal of computing time: the planned run, every number with source."""

from dataclasses import replace

from command.actions.predict import predicted_rows
from command.arguments import Arguments
from command.composition.compose import compose
from command.study.ladder import read_ladder
from components.errors import RecipeError
from components.planner.plan import plan_recipe
from components.planner.tree import plan_tree
from components.report.document import as_markdown, write_document
from components.report.html import check_destination
from components.report.proposal import LadderSays, propose
from components.terminal import tell

SUFFIXES = (".md", ".html")


def run(arguments: Arguments) -> None:
    """Write ``file=FILE.md`` or ``file=FILE.html``, else print Markdown."""
    if (file := arguments.file) is not None:
        if file.suffix not in SUFFIXES:
            problem = f"{file.name} is neither Markdown nor HTML"
            raise RecipeError("file", problem, "write file=NAME.md or file=NAME.html")
        check_destination(file)
    if arguments.run is not None and arguments.study is None:
        raise RecipeError("run", "no ladder is named whose runs lie there", "add study=ladder")
    composed = compose(arguments)
    recipe = composed.recipe
    ladder = None
    if arguments.study is not None:
        found = read_ladder(arguments, recipe)
        rows = tuple(predicted_rows(found))
        ladder = LadderSays(study=found.study.name, rows=rows, notes=found.notes)
    plan = plan_recipe(recipe)
    if recipe.children:
        plan = replace(plan, children=plan_tree(recipe, plan.bill, composed.children))
    proposal = propose(recipe, plan, ladder)
    tell(as_markdown(proposal) if file is None else str(write_document(proposal, file)))
