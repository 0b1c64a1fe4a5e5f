"""Print the bill before anything is spent: memory, time, cost, beside what is published."""

from dataclasses import replace
from datetime import datetime

from command.arguments import Arguments
from command.composition.compose import compose
from command.outcome import ActionResult, print_result
from command.recipe_summary import mixture_lines
from command.remarks import remarks
from components.config.rules.check import warnings_of
from components.planner.plan import layouts_found, plan_recipe
from components.planner.tree import plan_tree
from components.report.document import print_document, write_document
from components.report.html import check_plotly
from components.report.plan_page import plan_document
from components.report.plan_tables import picture_of
from components.terminal import console, say, tell

PLAIN_WIDTH = 130


def run(arguments: Arguments) -> ActionResult | None:
    """Print a plan, and write its page into ``file=FILE``; ``calibrate=[...]`` corrects it."""
    if arguments.calibrate:
        from command.calibrate import calibrate  # slow: scipy

        return calibrate(arguments)
    composed = compose(arguments)
    recipe, found = composed.recipe, composed.search
    for warning in warnings_of(recipe):
        say(f"warning: {warning}")
    for remark in remarks(composed, arguments):
        say(remark)
    plan, page = plan_recipe(recipe), None
    if found:
        search = layouts_found(found.search, recipe, found.published, found.refusal)
        plan = replace(plan, search=search)
    if recipe.children:
        plan = replace(plan, children=plan_tree(recipe, plan.bill, composed.children))
    picture = picture_of(plan)
    if arguments.file is not None:
        check_plotly("file")
        page = write_document(plan_document(plan, picture, why=recipe.why), arguments.file)

    def show() -> None:
        now = datetime.now().astimezone()
        document = plan_document(plan, picture, why=recipe.why, now=now)
        print_document(document, console(width=PLAIN_WIDTH))
        for line in mixture_lines(recipe):
            tell(line)

    print_result(arguments.output, plan.as_json(), show)
    if page is not None:
        # With output=json, standard output is one object and nothing else.
        (say if arguments.output == "json" else tell)(str(page))
    return None
