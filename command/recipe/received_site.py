"""Received site: what a job runs comes from a profile here, not from somebody else's run."""

from command.compose import compose_group
from command.recipe.own_places import option_names
from components.config.schema.recipe import Recipe, check_recipe
from components.errors import RecipeError
from components.run.folder import RunFolder
from components.run.ownership import is_own

OF_JOBS = ("scheduler", "site", "queues")  # the keys of a cluster that reach a script
UNSAID = "none"


def check_received_site(folder: RunFolder, recipe: Recipe) -> None:
    """Refuse to start jobs for a received run whose ``recipe.json`` says what they run.

    Raises:
        RecipeError: its cluster differs from the profile of that name here.
    """
    if is_own(folder.recipe):
        return
    name, tree = recipe.cluster.name, recipe.model_dump(mode="json")
    if name in option_names("cluster"):
        profile = compose_group("cluster", name)
        tree["cluster"] |= {key: profile.get(key, UNSAID) for key in OF_JOBS}
        if check_recipe(tree).cluster == recipe.cluster:
            return
    problem = f"differs from the profile {name} here, and {folder.path} was not made by you"
    remedy = "start it by hand in a job of your own: no job is written from this recipe"
    raise RecipeError("cluster.site", problem, remedy)
