"""Render the job script of a recipe; print it, or write it into ``file=FILE``."""

from cluster.job import job_settings, render_job_script, run_folder
from cluster.user import read_user
from command.arguments import ROOT, Arguments
from command.composition.compose import compose_recipe
from components.config.rules.check import warnings_of
from components.data.files import check_regular, write_atomically
from components.errors import RecipeError
from components.terminal import log_line, print_output


def run(arguments: Arguments) -> None:
    """Render the script with the known settings, and print missing ones to standard error."""
    recipe = compose_recipe(arguments)
    for warning in warnings_of(recipe):
        log_line(f"warning: {warning}")
    user = read_user(recipe.cluster.name, arguments.site)
    settings = job_settings(
        recipe, user, repository=ROOT, run=run_folder(recipe, user, arguments.run, ROOT)
    )
    for note in settings.notes:
        log_line(f"note: {note}")
    for error in settings.missing:
        log_line(f"missing: {error}")
    script = render_job_script(settings)
    if (file := arguments.file) is None:
        print_output(script.removesuffix("\n"))
        return
    check_regular(file, "file")
    try:
        write_atomically(file, script)
    except OSError as error:
        raise RecipeError(
            "file", f"cannot write {file}: {error.strerror}", "choose another path"
        ) from None
    print_output(str(file))
