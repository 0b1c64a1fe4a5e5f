"""Plan a run: memory, time and cost before anything is spent, next to published figures."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from command.arguments import Arguments
from command.card.reading import calibrate_with, find_card, use_card
from command.composition.compose import ComposedRun, compose_run
from command.outcome import ActionResult, print_result
from command.recipe_summary import mixture_lines
from command.remarks import iter_remarks
from command.words import check_no_recipe, keys_of
from components.config.rules.check import warnings_of
from components.planner.plan import plan_layouts, plan_recipe
from components.planner.result import Plan
from components.planner.tree import plan_tree
from components.report.document import ReportDocument, print_document, write_document
from components.report.html import check_destination, check_plotly
from components.report.plan_page import plan_document
from components.report.plan_tables import picture_of
from components.report.proposal import build_proposal
from components.run.site_card import SiteCard
from components.terminal import create_console, log_line, print_output

PLAIN_WIDTH = 130


def run(arguments: Arguments) -> ActionResult | None:
    """Print a plan, with ``study=`` a ladder's prediction, and write its page to ``file=``.

    ``file=NAME.md`` is a proposal. ``calibrate=`` corrects the plan by measured runs
    or by a site card.
    """
    if arguments.calibrate and find_card(arguments) is None:
        check_no_recipe(keys_of(arguments.words), "a calibration reads run folders")
        from command.calibrate import fit_calibration  # slow: scipy

        return fit_calibration(arguments)
    arguments, card = use_card(arguments)
    file, ladder, expected = arguments.file, None, None
    if file is not None:
        _check_page(file)
    composed = compose_run(arguments)
    recipe, plan = composed.recipe, _plan(composed, arguments, card)
    tree, picture = plan.as_json(), picture_of(plan)
    if arguments.study is not None:
        from command.study.ladder import read_ladder  # slow: scipy

        ladder = read_ladder(arguments, recipe)
        expected = ladder.for_proposal()
        tree = ladder.as_json() | {"plan": tree["bill"]}

    def build_document(now: datetime | None = None) -> ReportDocument:
        if ladder is not None:
            return ladder.build_document(plan, arguments.words)
        return plan_document(plan, picture, why=recipe.description, now=now)

    def print_plan() -> None:
        print_document(
            build_document(datetime.now().astimezone()), create_console(width=PLAIN_WIDTH)
        )
        for line in mixture_lines(recipe):
            print_output(line)

    if file is not None:
        page = (
            build_proposal(recipe, plan, expected) if _is_proposal(file) else build_document()
        )
        write_document(page, file)
    print_result(arguments.output, tree, print_plan)
    if file is not None:
        # With output=json, standard output is one object and nothing else.
        (log_line if arguments.output == "json" else print_output)(str(file))
    return None


def _is_proposal(file: Path) -> bool:
    return file.suffix == ".md"


def _check_page(file: Path) -> None:
    """Check that a page can be written to the file, before anything is computed."""
    check_destination(file)
    if not _is_proposal(file):
        check_plotly("file")


def _plan(composed: ComposedRun, arguments: Arguments, card: SiteCard | None) -> Plan:
    """Plan the recipe and its children, and print warnings and remarks."""
    recipe, result = composed.recipe, composed.search
    for warning in warnings_of(recipe):
        log_line(f"warning: {warning}")
    for remark in iter_remarks(composed, arguments):
        log_line(remark)
    plan = plan_recipe(recipe, calibrate_with(card, recipe) if card else None)
    if result:
        search = plan_layouts(result.search, recipe, result.published, result.refusal)
        plan = replace(plan, search=search)
    if recipe.children:
        plan = replace(plan, children=plan_tree(recipe, plan.cost_estimate, composed.children))
    return plan
