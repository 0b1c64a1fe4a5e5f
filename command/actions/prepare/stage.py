"""Stage everything that a run needs in one folder, for a machine without internet."""

from pathlib import Path

from cluster import staging
from cluster.user import read_user
from command.arguments import ROOT, Arguments
from command.composition.compose import compose_recipe
from command.evaluate.lists import fetch_lists
from command.prepared_data import prepare_data
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.run.provenance import parts_of
from components.sharing.prepared import STAGED, note_prepared
from components.terminal import log_line, print_output

COMMAND_ONLY = ("action=", "stage=", "file=", "tasks=", "site.", "output=")


def stage_run(arguments: Arguments) -> None:
    """Stage into ``file=FOLDER``. Repeating the command resumes an earlier, partial stage."""
    recipe = compose_recipe(arguments)
    user = read_user(recipe.cluster.name, arguments.site)
    target = staging.target_of(recipe, user)
    stem = f"{recipe.name}-{recipe.scale.name}-{recipe.cluster.name}.stage"
    folder = arguments.file or Path(stem)
    staging.open_stage(folder)
    commit = staging.bundle_code(ROOT, folder)
    log_line(f"code: {commit[:12]}")
    locks = locks_of(recipe, evaluates=bool(arguments.tasks))
    wheels = staging.fetch_packages(ROOT / "requirements", locks, target, folder)
    provided = f"; {', '.join(target.provided)} from modules" if target.provided else ""
    machine = f"Python {target.python} on {target.architecture}"
    log_line(f"packages: {len(wheels)} wheels for {machine}{provided}")
    without = _stage_data(recipe, arguments, folder)
    for place in fetch_lists(arguments, Path(recipe.data.folder)):
        staging.copy_tree(place, folder / "prepared" / place.name)
    image = staging.copy_image(user.image, folder)
    words = tuple(word for word in arguments.words if not word.startswith(COMMAND_ONLY))
    staging.write_installer(folder, recipe, target, commit=commit, image=image, words=words)
    facts = {
        "recipe": recipe.name,
        "scale": recipe.scale.name,
        "cluster": recipe.cluster.name,
        "python": target.python,
        "architecture": target.architecture,
        "provided": list(target.provided),
        "commit": commit,
        "without": without,
    }
    files = staging.close_stage(folder, facts)
    log_line(f"{len(files):,} files, {sum(file.bytes for file in files) / 1e9:.2f} GB")
    log_line(f"copy: rsync -a --partial {folder} LOGIN:FOLDER")
    log_line(f"on the cluster: bash {folder.name}/install.sh FOLDER")
    print_output(str(folder))


def locks_of(recipe: Recipe, *, evaluates: bool = False) -> list[str]:
    """Return the package locks for the ranks, and for tracking or evaluating the run."""
    after = [] if recipe.tracking.is_empty else ["tracking"]
    after += ["evaluate"] if evaluates else []
    return [f"{part}.lock" for part in [*parts_of(recipe), *after]]


def _stage_data(recipe: Recipe, arguments: Arguments, folder: Path) -> dict[str, str]:
    try:
        prepared = Path(prepare_data(recipe, arguments.site)["folder"])
    except RecipeError as error:
        if not error.path.startswith("data.sources."):
            raise
        log_line(f"staged without data: {error}")
        return {"data": f"{error.path}: {error.problem}"}
    staged = folder / "prepared" / prepared.name
    staging.copy_tree(prepared, staged)
    note_prepared(recipe, staged, STAGED)
    return {}
