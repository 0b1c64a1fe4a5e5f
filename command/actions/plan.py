"""Print the bill before anything is spent: memory, time, cost, beside what is published."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from command.arguments import Arguments
from command.composition.compose import ComposedRun, compose
from command.outcome import ActionResult, print_result
from command.recipe_summary import mixture_lines
from command.remarks import remarks
from components.config.rules.check import warnings_of
from components.planner.plan import layouts_found, plan_recipe
from components.planner.result import Plan
from components.planner.tree import plan_tree
from components.report.document import ReportDocument, print_document, write_document
from components.report.html import check_destination, check_plotly
from components.report.plan_page import plan_document
from components.report.plan_tables import picture_of
from components.report.proposal import propose
from components.terminal import console, say, tell

PLAIN_WIDTH = 130


def run(arguments: Arguments) -> ActionResult | None:
    """Print a plan, with ``study=`` what a ladder predicts, and write its page to ``file=``.

    ``file=NAME.md`` is a proposal; ``calibrate=[...]`` corrects the plan by runs.
    """
    if arguments.calibrate:
        from command.calibrate import calibrate  # slow: scipy

        return calibrate(arguments)
    file, ladder, expected = arguments.file, None, None
    if file is not None:
        _check_page(file)
    composed = compose(arguments)
    recipe, plan = composed.recipe, _plan(composed, arguments)
    tree, picture = plan.as_json(), picture_of(plan)
    if arguments.study is not None:
        from command.study.ladder import read_ladder  # slow: scipy

        ladder = read_ladder(arguments, recipe)
        expected = ladder.for_proposal()
        tree = ladder.as_json() | {"plan": tree["bill"]}

    def document(now: datetime | None = None) -> ReportDocument:
        if ladder is not None:
            return ladder.document(plan, arguments.words)
        return plan_document(plan, picture, why=recipe.why, now=now)

    def show() -> None:
        print_document(document(datetime.now().astimezone()), console(width=PLAIN_WIDTH))
        for line in mixture_lines(recipe):
            tell(line)

    if file is not None:
        page = propose(recipe, plan, expected) if _is_proposal(file) else document()
        write_document(page, file)
    print_result(arguments.output, tree, show)
    if file is not None:
        # With output=json, standard output is one object and nothing else.
        (say if arguments.output == "json" else tell)(str(file))
    return None


def _is_proposal(file: Path) -> bool:
    return file.suffix == ".md"


def _check_page(file: Path) -> None:
    """Refuse a place where no page can be written, before anything is computed."""
    check_destination(file)
    if not _is_proposal(file):
        check_plotly("file")


def _plan(composed: ComposedRun, arguments: Arguments) -> Plan:
    """Plan the recipe, and its children; say what the user may not expect of it."""
    recipe, found = composed.recipe, composed.search
    for warning in warnings_of(recipe):
        say(f"warning: {warning}")
    for remark in remarks(composed, arguments):
        say(remark)
    plan = plan_recipe(recipe)
    if found:
        search = layouts_found(found.search, recipe, found.published, found.refusal)
        plan = replace(plan, search=search)
    if recipe.children:
        plan = replace(plan, children=plan_tree(recipe, plan.bill, composed.children))
    return plan
