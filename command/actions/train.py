"""Train here: prepare the data, make the run folder, start the ranks, write the report."""

from pathlib import Path

from command.arguments import Arguments
from command.begin_run import create_run
from command.comparison import told_after, told_before
from command.composition.compose import ComposedRun, compose
from command.continuation import check_changes, continue_run, renew_data, reopen
from command.outcome import ActionResult, Status
from command.remarks import remarks
from command.run_tree.folders import create_child_folders
from command.run_tree.nodes import continues_tree, is_left
from command.run_tree.page import leave_tree_page
from command.tree.course import grow_here
from components.checkpoint.metadata import newest_checkpoint
from components.command_line import command_line
from components.config.recipe import Recipe
from components.report import measurements
from components.report.held_out import ending_lines
from components.report.tables import terminal_table
from components.report.write import write_report_if_possible
from components.run.disk import explained
from components.run.folder import RunFolder
from components.run.records import Results
from components.run.writer_lock import train_alone
from components.sharing.lock import Lock
from components.terminal import console, say, tell
from components.train.launch import check_trainable, launch

LOSSES = {
    "loss": "training loss",
    "held_out.final": "held-out loss",
    "held_out.final_unweighted": "held-out loss",
}


def _print_profile(run: Path) -> None:
    if not (profiles := measurements.read_profiles(run)):
        return
    first, *others = profiles
    out = console(width=160)
    steps = ", ".join(map(str, first["steps"]))
    out.print(f"profile of rank {first['rank']}, steps {steps}, by {first['clock']}:")
    out.print(terminal_table(measurements.parts_grid(first)))
    out.print(terminal_table(measurements.products_grid(first)))
    if first.get("machine") is None:
        out.print(
            "no limit: this cluster's profile has no figures of its hardware; "
            "python -m benchmarks.peaks measures them"
        )
    if (waits := measurements.waits_grid(first)).rows:
        out.print("the host waits for its device, or would on one, in:")
        out.print(terminal_table(waits))
    if others:
        ranks = ", ".join(str(tree["rank"]) for tree in others)
        out.print(f"the report has ranks {ranks}, too")


def run(arguments: Arguments, composed: ComposedRun | None = None) -> ActionResult:
    """Train a new run, or continue one; its folder is held until all ranks have ended."""
    if arguments.resume is None:
        composed = composed or compose(arguments)
        recipe = composed.recipe
        for remark in remarks(composed, arguments):
            say(remark)
        _check_here(recipe)
        folder = create_run(recipe, arguments, arguments.run)
        create_child_folders(folder.path, composed.children, arguments.site)
        with train_alone(folder.path, "run", say) as lock:
            ended = _train(recipe, folder, lock, composed.bundle)
        return _grown(folder, ended)
    check_changes(arguments)
    if continues_tree(arguments):
        return _grown(RunFolder(arguments.resume), ActionResult(run=arguments.resume))
    # Opened before the lock, which is a file: nothing is written yet.
    folder, _, _ = reopen(arguments.resume, arguments)
    with train_alone(folder.path, "resume", say) as lock:
        ended = _train(_resume(arguments.resume, arguments), folder, lock, None)
    return _grown(folder, ended)


def _grown(folder: RunFolder, ended: ActionResult) -> ActionResult:
    """Do what follows from the run's checkpoints, if it has ended well and is a trunk."""
    if ended.status is not Status.DONE or not is_left(folder.path):
        return ended
    status = grow_here(folder.path.absolute())
    leave_tree_page(folder.path)
    if status is not Status.DONE:
        say(f"what is left of the tree: {_resume_command(folder)}")
    return ActionResult(max(ended.status, status), folder.path)


def _train(recipe: Recipe, folder: RunFolder, lock: int, bundle: Lock | None) -> ActionResult:
    for line in told_before(bundle, folder.path) if bundle else ():
        say(line)
    say(f"run: {folder.path}  (if it is interrupted: {_resume_command(folder)})")
    try:
        with explained(folder.path):
            ended = launch(recipe, folder, lock)
            while ended == "stopped" and _results(folder).goes_on:
                phase = recipe.clock.span_of(_results(folder).steps).name
                say(f"the run goes on with its phase {phase or 'before the first'}")
                folder.results.unlink()
                ended = launch(recipe, folder, lock)
            if ended == "failed":
                say(f"the ranks failed; what is saved is in {folder.path}")
                return ActionResult(Status.DOES_NOT_HOLD, folder.path)
            for line in told_after(bundle, folder.path) if bundle else ():
                say(line)
            report = write_report_if_possible([folder.path], folder.path / "report.html", say)
    except KeyboardInterrupt:
        say(_interrupted(folder))
        return ActionResult(Status.INTERRUPTED, folder.path)
    results = _results(folder)
    _print_end(folder, results, report)
    if ended == "stopped":
        return ActionResult(Status.STOPPED, folder.path)
    if lost := {name: None for key, name in LOSSES.items() if key in results.not_finite}:
        say(f"the run does not hold: not finite at its end: {', '.join(lost)}")
    return ActionResult(Status.DOES_NOT_HOLD if lost else Status.DONE, folder.path)


def _results(folder: RunFolder) -> Results:
    return folder.read("results.json", Results, finite=False)


def _interrupted(folder: RunFolder) -> str:
    """Give what is kept of a run that did not save before it was ended, and how to go on."""
    if folder.results.exists():
        way = command_line("action=report", f"run={folder.path}")
        return f"interrupted after it had ended: all is saved; its report: {way}"
    saved = newest_checkpoint(folder.checkpoints)
    kept = f"kept is {saved}" if saved else "no checkpoint was whole yet"
    return f"interrupted: {kept}; go on with: {_resume_command(folder)}"


def _resume_command(folder: RunFolder) -> str:
    return command_line(f"resume={folder.path}")


def _check_here(recipe: Recipe) -> None:
    """Refuse what cannot be trained on this machine, before anything is written."""
    check_trainable(recipe)
    from components.train.local_checks import check_machine  # imports torch

    check_machine(recipe)


def _resume(path: Path, arguments: Arguments) -> Recipe:
    """Take everything from the folder, but what the words change."""
    folder, before, recipe = reopen(path, arguments)
    if recipe != before:
        _check_here(recipe)
    renew_data(folder, recipe, arguments)
    continue_run(folder, before, recipe, arguments, reads=True)
    with explained(folder.path):
        folder.results.unlink(missing_ok=True)
        folder.stop.unlink(missing_ok=True)
    return recipe


def _print_end(folder: RunFolder, results: Results, report: Path | None) -> None:
    lines = [f"{results.status}: {results.tokens:,} tokens in {results.steps:,} steps"]
    lines += ending_lines(results.held_out)
    lines.append(f"{results.tokens_per_second:,.0f} tokens/s")
    if results.status == "stopped":
        lines.append(f"go on with: {_resume_command(folder)}")
    _print_profile(folder.path)
    lines += [f"report: {report}"] if report else []
    tell("\n".join(lines))
