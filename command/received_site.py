"""Check the site of a received run: jobs only run commands of a profile in this clone."""

from command.composition.conf_groups import compose_group
from command.files.trusted_paths import option_names
from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.run.folder import RunFolder
from components.run.ownership import is_own

JOB_KEYS = ("scheduler", "site", "queues")  # cluster keys that are used in a job script


def check_received_site(folder: RunFolder, recipe: Recipe) -> None:
    """Raise a RecipeError for a received run if its cluster differs from the local profile."""
    if is_own(folder.recipe):
        return
    name, tree = recipe.cluster.name, recipe.model_dump(mode="json")
    if name in option_names("cluster"):
        profile = compose_group("cluster", name)
        tree["cluster"] |= {key: profile.get(key, "none") for key in JOB_KEYS}
        if check_recipe(tree).cluster == recipe.cluster:
            return
    problem = f"differs from the profile {name} here, and {folder.path} was received"
    remedy = "write the job script yourself: a received recipe gets none"
    raise RecipeError("cluster.site", problem, remedy)
