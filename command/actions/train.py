"""Train here: prepare the data, create the run folder, start the ranks, write the report."""

from pathlib import Path

from cluster.records import record_event
from command.arguments import Arguments
from command.begin_run import create_run
from command.composition.compose import ComposedRun, compose_run
from command.continuation import check_changes, continue_run, renew_data, reopen_run
from command.outcome import ActionResult, Status
from command.remarks import iter_remarks
from command.run_tree.folders import create_child_folders
from command.run_tree.nodes import continues_tree, is_left
from command.run_tree.page import leave_tree_page
from command.tree.course import run_due_nodes
from components.checkpoint.metadata import newest_checkpoint
from components.command_line import command_line
from components.config.recipe import Recipe
from components.report import measurements
from components.report.held_out import ending_lines
from components.report.tables import terminal_table
from components.report.write import write_report_if_possible
from components.run.disk import as_recipe_error
from components.run.folder import RunFolder
from components.run.records import Results
from components.run.site_card import FILE_NAME as CARD
from components.run.writer_lock import train_alone
from components.terminal import create_console, log_line, print_output
from components.train.launch import check_trainable, launch_training

LOSSES = {
    "loss": "training loss",
    "held_out.final": "held-out loss",
    "held_out.final_unweighted": "held-out loss",
}


def _print_profile(run: Path) -> None:
    if not (profiles := measurements.read_profiles(run)):
        return
    first, *others = profiles
    out = create_console(width=160)
    steps = ", ".join(map(str, first["steps"]))
    out.print(f"profile of rank {first['rank']}, steps {steps}, by {first['clock']}:")
    out.print(terminal_table(measurements.parts_grid(first)))
    if others:
        ranks = ", ".join(str(tree["rank"]) for tree in others)
        out.print(f"the report also has ranks {ranks}")


def run(arguments: Arguments, composed: ComposedRun | None = None) -> ActionResult:
    """Train a new run or continue one. The run folder is locked until all ranks have ended."""
    if arguments.resume is None:
        composed = composed or compose_run(arguments)
        recipe = composed.recipe
        for remark in iter_remarks(composed, arguments):
            log_line(remark)
        _check_here(recipe)
        folder = create_run(recipe, arguments, arguments.run)
        create_child_folders(folder.path, composed.children, arguments.site)
        if arguments.card:
            _check_node(recipe, folder)
        with train_alone(folder.path, "run") as lock:
            ended = _train(recipe, folder, lock)
        if arguments.card and ended.status is Status.DONE:
            print_output(f"card: {folder.path / CARD}")
        if composed.draft.bundle is not None:
            words = ("action=verify", f"file={arguments.recipe}", f"run={folder.path}")
            log_line(f"compare with the packed run: {command_line(*words)}")
        return _grown(folder, ended)
    check_changes(arguments)
    if continues_tree(arguments):
        return _grown(RunFolder(arguments.resume), ActionResult(run=arguments.resume))
    # Reopen before taking the lock, which is a file: nothing is written yet.
    folder, _, _ = reopen_run(arguments.resume, arguments)
    with train_alone(folder.path, "resume") as lock:
        ended = _train(_resume(arguments.resume, arguments), folder, lock)
    return _grown(folder, ended)


def _check_node(recipe: Recipe, folder: RunFolder) -> None:
    """Run the preflight of this machine before a card's run, and record its time."""
    from components.preflight.node import look_alone  # imports torch

    verdict = look_alone(recipe, folder)
    cause = "; ".join(verdict.iter_reasons()) or "all nodes are good"
    log_line(f"preflight: {cause}, after {verdict.seconds:.1f} s")
    record_event(folder, "preflight", cause, {"nodes": 1}, seconds=verdict.seconds)


def _grown(folder: RunFolder, ended: ActionResult) -> ActionResult:
    """Run or submit the due child runs of a run that has ended with success."""
    if ended.status is not Status.DONE or not is_left(folder.path):
        return ended
    status = run_due_nodes(folder.path.absolute())
    leave_tree_page(folder.path)
    if status is not Status.DONE:
        log_line(f"continue the tree with: {_resume_command(folder)}")
    return ActionResult(max(ended.status, status), folder.path)


def _train(recipe: Recipe, folder: RunFolder, lock: int) -> ActionResult:
    log_line(f"run: {folder.path}  (resume with: {_resume_command(folder)})")
    try:
        with as_recipe_error(folder.path):
            ended = launch_training(recipe, folder, lock)
            while ended == "stopped" and _results(folder).goes_on:
                phase = recipe.token_clock.span_of(_results(folder).steps).name
                log_line(f"the run continues with phase {phase or 'before the first'}")
                folder.results.unlink()
                ended = launch_training(recipe, folder, lock)
            if ended == "failed":
                log_line(f"the ranks failed; saved files are in {folder.path}")
                return ActionResult(Status.DOES_NOT_HOLD, folder.path)
            report = write_report_if_possible(
                [folder.path], folder.path / "report.html", log_line
            )
    except KeyboardInterrupt:
        log_line(_interrupted(folder))
        return ActionResult(Status.INTERRUPTED, folder.path)
    results = _results(folder)
    _print_end(folder, results, report)
    if ended == "stopped":
        return ActionResult(Status.STOPPED, folder.path)
    if lost := {name: None for key, name in LOSSES.items() if key in results.not_finite}:
        log_line(f"the run failed: not finite at the end: {', '.join(lost)}")
    return ActionResult(Status.DOES_NOT_HOLD if lost else Status.DONE, folder.path)


def _results(folder: RunFolder) -> Results:
    return folder.read_file("results.json", Results, finite=False)


def _interrupted(folder: RunFolder) -> str:
    """Return a message with the newest checkpoint and the command that continues the run."""
    if folder.results.exists():
        command = command_line("action=report", f"run={folder.path}")
        return f"interrupted after the run had ended: all results are saved; report: {command}"
    saved = newest_checkpoint(folder.checkpoints)
    copies_text = f"the last checkpoint is {saved}" if saved else "no checkpoint is complete"
    return f"interrupted: {copies_text}; continue with: {_resume_command(folder)}"


def _resume_command(folder: RunFolder) -> str:
    return command_line(f"resume={folder.path}")


def _check_here(recipe: Recipe) -> None:
    """Check that this machine can train the recipe, before anything is written."""
    check_trainable(recipe)
    from components.train.local_checks import check_machine  # imports torch

    check_machine(recipe)


def _resume(path: Path, arguments: Arguments) -> Recipe:
    """Reopen a run with the changes that the words name, and return its recipe."""
    folder, before, recipe = reopen_run(path, arguments)
    if recipe != before:
        _check_here(recipe)
    renew_data(folder, recipe, arguments)
    continue_run(folder, before, recipe, arguments, reads=True)
    with as_recipe_error(folder.path):
        folder.results.unlink(missing_ok=True)
        folder.stop.unlink(missing_ok=True)
    return recipe


def _print_end(folder: RunFolder, results: Results, report: Path | None) -> None:
    lines = [f"{results.status}: {results.tokens:,} tokens in {results.steps:,} steps"]
    lines += ending_lines(results.held_out)
    lines.append(f"{results.tokens_per_second:,.0f} tokens/s")
    if results.status == "stopped":
        lines.append(f"continue with: {_resume_command(folder)}")
    _print_profile(folder.path)
    lines += [f"report: {report}"] if report else []
    print_output("\n".join(lines))
