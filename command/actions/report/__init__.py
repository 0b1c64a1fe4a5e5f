"""Write an HTML report of one or more run folders, and another of the tree below a run."""

from pathlib import Path

from command.actions.report.sync import send_runs
from command.arguments import Arguments
from command.outcome import ActionResult
from command.recipe.path_checks import named_runs
from command.run_tree.page import write_tree_page
from components.report.html import check_plotly
from components.report.page import write_report
from components.terminal import print_output


def run(arguments: Arguments) -> ActionResult | None:
    """Report ``run=FOLDER`` or ``runs=[...]`` into ``file=FILE``, or into the run folder.

    With ``study=NAME`` the page reports the study's points. With ``sync=true`` the measurements
    are sent to trackers instead.
    """
    if arguments.sync:
        send_runs(arguments)
        return None
    if arguments.study:
        from command.study.listed import run_study  # slow: numpy and tokenizers

        return ActionResult(run_study(arguments.words))
    check_plotly("action")
    runs = named_runs(arguments)
    several = len(runs) > 1 and arguments.runs
    folder = Path() if several else arguments.run or runs[0]
    print_output(str(write_report(runs, arguments.file or folder / "report.html")))
    if len(runs) == 1 and (tree := write_tree_page(runs[0])) is not None:
        print_output(str(tree))
    return None
