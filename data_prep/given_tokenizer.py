"""A tokenizer that exists already: its files are taken over, nothing is trained."""

import shutil
from dataclasses import replace
from pathlib import Path

from components.data import byte_bpe, unigram
from components.data.files import FileRecord, record_file
from components.data.tokenizer import Tokenizer
from components.errors import RecipeError

PATH = "data.tokenizer_folder"
FILE_NAMES = (byte_bpe.FILE_NAME, unigram.FILE_NAME)


def find_tokenizer(folder: str) -> tuple[FileRecord, ...]:
    """Hash the tokenizer's files in ``folder``; none if the recipe says ``none``.

    Raises:
        RecipeError: the folder holds no such file.
    """
    if folder == "none":
        return ()
    found = [path for name in FILE_NAMES if (path := Path(folder) / name).is_file()]
    if not found:
        raise RecipeError(
            PATH,
            f"{folder} holds none of {', '.join(FILE_NAMES)}",
            "name the folder of a tokenizer, or set it to none to train one",
        )
    return tuple(replace(record_file(path), name=str(path)) for path in found)


def take_tokenizer(
    tokenizer: Tokenizer, files: tuple[FileRecord, ...], folder: Path
) -> tuple[FileRecord, ...]:
    """Copy the files into ``folder`` and load them from there.

    Raises:
        RecipeError: they are not of the tokenizer that the recipe describes.
    """
    for file in files:
        shutil.copyfile(file.name, folder / Path(file.name).name)
    try:
        tokenizer.load(folder)
    except RecipeError as error:
        raise RecipeError(
            PATH,
            f"{Path(files[0].name).parent} holds another tokenizer: {error.problem}",
            "let tokenizer describe the one in the folder",
        ) from error
    return tuple(record_file(folder / Path(file.name).name) for file in files)
