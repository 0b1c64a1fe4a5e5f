"""Lists of words by language, from a user's file: none is carried here.

The format is that of stopwords-json and stopwords-iso: one JSON object, language to words.
"""

from pathlib import Path

from components.errors import RecipeError
from components.json_file import open_regular, parse_json

REMEDY = 'give a JSON file, as {"en": ["the", "of"], "fr": ["le"]}, or none'


def read_word_lists(file: str, where: str) -> dict[str, frozenset[str]]:
    """Read the words of each language in lower case; nothing for ``none``.

    Raises:
        RecipeError: the file is missing, no JSON, or of another shape.
    """
    if file == "none":
        return {}
    try:
        with open_regular(Path(file)) as stream:
            tree = parse_json(stream.read(), finite=True)
    except (OSError, ValueError) as error:
        raise RecipeError(where, f"{file} cannot be read: {error}", REMEDY) from error
    if not isinstance(tree, dict):
        raise RecipeError(where, f"{file} holds no object", REMEDY)
    for language, words in tree.items():
        if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise RecipeError(where, f"{file} has no list of words under {language!r}", REMEDY)
    return {
        language: frozenset(word.strip().lower() for word in words)
        for language, words in tree.items()
    }
