"""Begin a run from Python: its folder, with the recipe and its prepared data."""

from pathlib import Path

from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.continuation import describe
from command.hydra_words import plain_words
from command.prepared_data import prepare_data
from components.checkpoint.start import find_start, put_start
from components.config.resolve import check_continues
from components.run.folder import RunFolder, create_run_folder, open_run_folder
from components.train.launch import check_trainable


def begin_run(path: Path, *words: str) -> Path:
    """Compose the recipe of ``words`` by Hydra and make its run folder; or reopen the folder.

    Raises:
        RecipeError: what the user can mend; also where the folder holds another recipe.
    """
    arguments = read_point(plain_words(words))
    recipe = compose_recipe(arguments)
    if RunFolder(path).recipe.is_file():
        folder, before = open_run_folder(path)
        check_continues(before, recipe, path)
        folder.results.unlink(missing_ok=True)
        folder.stop.unlink(missing_ok=True)
        return path
    check_trainable(recipe)
    start = find_start(recipe)
    data = prepare_data(recipe, arguments.site)
    folder = create_run_folder(recipe, path)
    describe(folder, data, arguments)
    put_start(folder, start)
    return path
