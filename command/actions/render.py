"""Print the job script of a recipe on its cluster, or write it into ``file=FILE``."""

from cluster.job import JobSettings, job_settings, run_folder
from cluster.render import render
from cluster.user import read_user
from command.arguments import ROOT, Arguments
from command.compose import compose_recipe
from command.outcome import ActionResult
from components.config.rules.check import warnings_of
from components.config.schema.recipe import Recipe
from components.data.files import check_regular
from components.errors import RecipeError
from components.terminal import say, tell


def run(arguments: Arguments) -> ActionResult:
    """Render with what is known; what the user has yet to say is named on standard error."""
    recipe = compose_recipe(arguments)
    for warning in warnings_of(recipe):
        say(f"warning: {warning}")
    settings = settings_of(recipe, arguments)
    for note in settings.notes:
        say(f"note: {note}")
    for error in settings.missing:
        say(f"missing: {error}")
    script = render(settings)
    if "file" not in arguments.folders:
        tell(script.removesuffix("\n"))
        return ActionResult()
    file = arguments.folders["file"]
    check_regular(file, "file")
    try:
        file.write_text(script, "utf-8")
    except OSError as error:
        raise RecipeError("file", f"cannot write {file}: {error}", "choose another") from None
    tell(str(file))
    return ActionResult()


def settings_of(recipe: Recipe, arguments: Arguments) -> JobSettings:
    """Compute the job, with the user's own side of the cluster.

    Raises:
        RecipeError: there is no script for this cluster, or the user's own side is wrong.
    """
    user = read_user(recipe.cluster.name, arguments.site)
    folder = run_folder(recipe, user, arguments.folders.get("run"), ROOT)
    return job_settings(recipe, user, repository=ROOT, run=folder)
