"""Write one HTML file from one or more run folders, and one more of the tree below a run."""

from pathlib import Path

from command.actions.report.sync import send_runs
from command.arguments import Arguments
from command.recipe.path_checks import named_runs
from command.run_tree.page import write_tree_page
from components.report.html import check_plotly
from components.report.page import write_report
from components.terminal import tell


def run(arguments: Arguments) -> None:
    """Report ``run=FOLDER`` or ``runs=[...]`` into ``file=FILE``, or into the one folder.

    With ``sync=true`` their measurements are sent to trackers instead.
    """
    if arguments.sync:
        send_runs(arguments)
        return
    check_plotly("action")
    runs = named_runs(arguments)
    several = len(runs) > 1 and arguments.runs
    folder = Path() if several else arguments.run or runs[0]
    tell(str(write_report(runs, arguments.file or folder / "report.html")))
    if len(runs) == 1 and (tree := write_tree_page(runs[0])) is not None:
        tell(str(tree))
