"""Ask how submitted runs are."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from cluster.records import RunStatus, status_of
from cluster.scheduler import Scheduler, scheduler_of
from command.arguments import Arguments
from command.outcome import ActionResult
from command.path_checks import named_runs
from components.config.schema.recipe import read_recipe
from components.terminal import console, tell

_WIDTH = 160  # of tables that are piped


def run(arguments: Arguments) -> ActionResult:
    """Print one run's jobs, or a table of all runs of a sweep's folder or of ``runs=[...]``."""
    folders = named_runs(arguments)
    if folders != [arguments.run]:
        print_runs(folders, arguments.output)
        return ActionResult()
    one = status_of(folders[0], _scheduler(folders[0]))
    if arguments.output == "json":
        tell(json.dumps(one.as_json()))
    else:
        out = console(width=_WIDTH)
        out.print(_runs([one]))
        out.print(_jobs(one))
    return ActionResult()


def print_runs(folders: Sequence[Path], output: str) -> None:
    """Print a row for each run folder, or one JSON object."""
    found = [status_of(folder, _scheduler(folder)) for folder in folders]
    if output == "json":
        tell(json.dumps({"runs": [one.as_json() for one in found]}))
    else:
        console(width=_WIDTH).print(_runs(found))


def _scheduler(folder: Path) -> Scheduler | None:
    """Find the scheduler of the run's cluster, if its commands are here."""
    if not (folder / "recipe.json").is_file():
        return None
    cluster = read_recipe(folder / "recipe.json").cluster
    if cluster.scheduler == "none":
        return None
    scheduler = scheduler_of(cluster)
    return scheduler if shutil.which(scheduler.program) else None


def _runs(found: Sequence[RunStatus]) -> Table:
    """List the runs; of several in one folder that folder's name is said once."""
    parents = {Path(one.run).parent for one in found}
    together = len(found) > 1 and len(parents) == 1
    where = f"run in {parents.pop()}" if together else "run"
    table = Table(box=None)
    for name in (where, "recipe", "state", "tokens", "of the budget", ""):
        table.add_column(name, overflow="fold")
    for one in found:
        run = Path(one.run).name if together else one.run
        part = f"{one.tokens / one.total_tokens:.1%}"
        table.add_row(run, one.recipe, one.state, f"{one.tokens:,}", part, one.why)
    return table


def _jobs(one: RunStatus) -> Table:
    table = Table("job", "attempt", "state", "from tokens", "to tokens", "", box=None)
    for record in one.jobs:
        ended = record.ended or "not ended"
        to = "" if record.tokens_at_end is None else f"{record.tokens_at_end:,}"
        begin = f"{record.tokens_at_begin:,}"
        table.add_row(record.job, str(record.attempt), ended, begin, to, record.why)
    for job in one.queued or ():
        table.add_row(job.job, "", job.state, "", "", job.why)
    return table
