"""Let a run go on from an earlier checkpoint: from here, or by the next job of its chain."""

from command.arguments import Arguments
from command.recipe.path_checks import check_run_places
from components.checkpoint.rewind import ASIDE, rewind
from components.config.check import read_recipe
from components.errors import RecipeError
from components.run.disk import explained
from components.run.event_log import EventLog
from components.run.folder import existing_run_folder
from components.run.writer_lock import train_alone
from components.terminal import say, tell


def run(arguments: Arguments) -> None:
    """Make ``at_tokens=N`` the newest checkpoint of ``run=``; set the later ones aside."""
    if arguments.run is None:
        raise RecipeError("run", "no run is named", "write run=FOLDER")
    if arguments.at_tokens is None:
        problem, remedy = "no checkpoint is named", "write at_tokens=N, as in its folder's name"
        raise RecipeError("at_tokens", problem, remedy)
    folder = existing_run_folder(arguments.run)
    check_run_places(folder, read_recipe(folder.recipe), arguments)
    with train_alone(folder.path, "run", say), explained(folder.path):
        there = rewind(
            folder.checkpoints, arguments.at_tokens, fresh_optimizer=arguments.fresh_optimizer
        )
        for one in (folder.results, folder.stop):
            one.unlink(missing_ok=True)
        optimizer = "a fresh optimizer" if arguments.fresh_optimizer else "its optimizer"
        cause = f"the user goes back, with {optimizer}"
        evidence = {"checkpoint": there.checkpoint.name, "left": list(there.left)}
        log = EventLog(file=folder.journal, writes=True, retry_seconds=0.0)
        log.note("rewind", there.marker.progress, cause, evidence)
    if there.left:
        say(f"set aside in {folder.checkpoints / ASIDE}: {', '.join(there.left)}")
    step = there.marker.progress.step
    tell(f"{folder.path} goes on from step {step:,}, with {optimizer}: resume={folder.path}")
