"""Create a run folder: the recipe, its prepared data and its first checkpoint."""

from pathlib import Path

from command.arguments import Arguments, read_point
from command.composition.compose import compose_recipe
from command.continuation import write_data_records
from command.hydra_words import plain_words
from command.prepared_data import prepare_run_data
from command.start_data import check_start_data
from components.checkpoint.start import find_start, put_start
from components.config.recipe import Recipe
from components.config.resolve import check_continues
from components.run.folder import RunFolder, create_run_folder, open_run_folder
from components.run.writer_lock import train_alone
from components.train.launch import check_trainable


def create_run(recipe: Recipe, arguments: Arguments, path: Path | None) -> RunFolder:
    """Create the run folder of a checked recipe; without a path its name is generated."""
    start = find_start(recipe)
    data = prepare_run_data(recipe, arguments)
    check_start_data(recipe, data)
    folder = create_run_folder(recipe, path)
    write_data_records(folder, data, arguments)
    put_start(folder, start)
    return folder


def begin_run(path: Path, *words: str) -> Path:
    """Create a run folder from Python with Hydra's ``words``, or reopen this run's folder."""
    arguments = read_point(plain_words(words))
    recipe = compose_recipe(arguments)
    if RunFolder(path).recipe.is_file():
        folder, before = open_run_folder(path)
        check_continues(before, recipe, path)
        with train_alone(path, "run"):  # another process may train or end there
            folder.results.unlink(missing_ok=True)
            folder.stop.unlink(missing_ok=True)
        return path
    check_trainable(recipe)
    return create_run(recipe, arguments, path).path
