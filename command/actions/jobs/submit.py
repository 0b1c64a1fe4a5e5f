"""Submit a run, or the remaining nodes of its tree, to the scheduler."""

from collections.abc import Mapping
from pathlib import Path

from cluster.job import run_folder
from cluster.user import read_user
from command.arguments import ROOT, Arguments
from command.composition.compose import ComposedRun, compose_run
from command.continuation import reopen_run
from command.jobs.submission import NONE, check_own, check_resubmission, check_run, submit_run
from command.outcome import ActionResult
from command.run_tree.nodes import continues_tree, nodes_of
from command.tree.submission import submit_due
from components.command_line import command_line
from components.config.recipe import Recipe
from components.run.ownership import check_links
from components.run.site_card import FILE_NAME as CARD
from components.run.writer_lock import check_not_trained
from components.terminal import log_line, print_output


def run(arguments: Arguments, composed: ComposedRun | None = None) -> ActionResult:
    """Submit a new run, a run whose chain has ended, or the remaining nodes of a tree."""
    if continues_tree(arguments) and arguments.resume is not None:
        check_own(arguments.resume)
        submit_due(arguments.resume.absolute(), reopened_by=arguments)
        return ActionResult(run=arguments.resume)
    recipe, children, path = _find_run(arguments, composed)
    check_links(path, "run")
    check_resubmission(recipe, path, arguments)
    check_not_trained(path, "run")
    checked = check_run(recipe, arguments, path, children)
    chain, settings = submit_run(checked, after=None, children=children), checked.settings
    jobs = f"a chain of at most {settings.jobs} jobs" if settings.jobs > 1 else "one job"
    print_output(
        f"submitted {chain}: {jobs} of {settings.nodes:,} nodes for {settings.walltime}\n"
        f"script: {path}/jobs/job.sh\n"
        f"run: {path}\n"
        f"next: {command_line('action=status', f'run={path}')}"
    )
    if recipe.children:
        names = ", ".join(f"{node.name} ({node.child.node_kind})" for node in nodes_of(path))
        log_line(f"the jobs submit these nodes when the checkpoints exist: {names}")
        if arguments.resume is not None or arguments.again:
            submit_due(path, reopened_by=arguments)  # jobs submit each node only once
    if arguments.card:
        print_output(f"card: {path / CARD}, when the job has ended")
    elif not recipe.cluster.smoke:
        log_line("for a short test on two nodes, add cluster.smoke=true")
    return ActionResult(run=path)


def _find_run(
    arguments: Arguments, composed: ComposedRun | None
) -> tuple[Recipe, Mapping[str, Recipe], Path]:
    """Return the recipe to submit, its children's recipes, and the run folder's path."""
    if arguments.resume is None:
        composed = composed or compose_run(arguments)
        recipe = composed.recipe
        user = read_user(recipe.cluster.name, arguments.site)
        return recipe, composed.children, run_folder(recipe, user, arguments.run, ROOT)
    folder, _, recipe = reopen_run(arguments.resume, arguments)
    check_own(folder.path)
    return recipe, NONE, folder.path.absolute()
