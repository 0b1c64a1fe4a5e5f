"""Where a recipe comes from: by name or by path, as a recipe or a bundle, and whose it is."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command.files.trusted_paths import RECIPE, is_trusted, option_names
from command.files.yaml_file import ReceivedYaml, tell_line
from command.recipe.lock_file import ReceivedLock, read_given
from command.recipe.path_checks import check_places, explain_received
from command.recipe.recipe_chain import RecipeChain, read_chain, read_named
from components.config.user_overrides import UserOverrides
from components.errors import RecipeError
from components.sharing.lock import Lock


@dataclass(frozen=True)
class RecipeSource:
    """Where a recipe comes from: a chain of files, or the bundle that carries it.

    Of the files that were ``given`` as a path, errors name the lines.
    """

    came: RecipeChain | Lock
    files: Sequence[ReceivedYaml]
    given: bool

    def told(self, error: RecipeError) -> RecipeError:
        """Put file and line before an error's path."""
        return tell_line(self.files, error) if self.given else error

    def check_places(
        self, tree: Mapping[str, Any], named: UserOverrides, beside: UserOverrides
    ) -> None:
        """Check the places that neither the user names nor, in an own place, the recipe.

        ``beside`` are the keys that another file gave.
        """
        try:
            check_places(tree, named)
        except RecipeError as error:
            files = dict.fromkeys(sent.file for sent in self.files)
            if received := [file for file in files if not is_trusted(file)]:
                raise explain_received(error, received) from None
            check_places(tree, named, beside)


def read_source(name: str | None) -> RecipeSource:
    """Read what ``recipe=`` names: a recipe of a name, a recipe's file, or a bundle.

    Raises:
        RecipeError: there is none, or it is wrong; with the line.
    """
    if name is None or not name.endswith(".yaml"):
        chain = read_named(name)
        return RecipeSource(chain, chain.files, given=False)
    file = Path(name).expanduser()
    if not os.path.lexists(file) and file.stem in option_names(RECIPE):
        raise RecipeError(RECIPE, f"there is no file {file}", f"write recipe={file.stem}")
    given = read_given(file)
    if isinstance(given, ReceivedLock):
        return RecipeSource(given.lock, [given.sent], given=True)
    chain = read_chain(given)
    return RecipeSource(chain, chain.files, given=True)
