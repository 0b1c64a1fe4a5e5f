"""Print the job script of a recipe on its cluster, or write it into ``file=FILE``."""

from cluster.job import job_settings, render, run_folder
from cluster.user import read_user
from command.arguments import ROOT, Arguments
from command.composition.compose import compose_recipe
from components.config.rules.check import warnings_of
from components.data.files import check_regular, write_atomically
from components.errors import RecipeError
from components.terminal import say, tell


def run(arguments: Arguments) -> None:
    """Render with what is known; what the user has yet to say is named on standard error."""
    recipe = compose_recipe(arguments)
    for warning in warnings_of(recipe):
        say(f"warning: {warning}")
    user = read_user(recipe.cluster.name, arguments.site)
    settings = job_settings(
        recipe, user, repository=ROOT, run=run_folder(recipe, user, arguments.run, ROOT)
    )
    for note in settings.notes:
        say(f"note: {note}")
    for error in settings.missing:
        say(f"missing: {error}")
    script = render(settings)
    if (file := arguments.file) is None:
        tell(script.removesuffix("\n"))
        return
    check_regular(file, "file")
    try:
        write_atomically(file, script)
    except OSError as error:
        raise RecipeError(
            "file", f"cannot write {file}: {error.strerror}", "choose another"
        ) from None
    tell(str(file))
