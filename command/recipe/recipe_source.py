"""Source of a recipe: a name or a path, a recipe or a bundle, trusted or received."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command.files.trusted_paths import is_trusted
from command.files.yaml_file import ReceivedYaml, tell_line
from command.recipe.lock_file import ReceivedLock, read_given
from command.recipe.path_checks import check_places, explain_received
from command.recipe.recipe_chain import RecipeChain, read_chain, read_named
from components.config.user_overrides import UserOverrides
from components.errors import RecipeError
from components.sharing.lock import Lock


@dataclass(frozen=True)
class RecipeSource:
    """Source of a recipe: a chain of files, or the bundle that contains it.

    If the recipe was ``given`` by its path, errors include the file and line.
    """

    came: RecipeChain | Lock
    files: Sequence[ReceivedYaml]
    given: bool

    def locate_error(self, error: RecipeError) -> RecipeError:
        """Prefix an error's path with file and line."""
        return tell_line(self.files, error) if self.given else error

    def check_places(
        self, tree: Mapping[str, Any], named: UserOverrides, from_files: UserOverrides
    ) -> None:
        """Check all paths that neither the user names nor one of the user's own recipes.

        ``from_files`` are the keys that another file set.
        """
        try:
            check_places(tree, named)
        except RecipeError as error:
            files = dict.fromkeys(sent.file for sent in self.files)
            if received := [file for file in files if not is_trusted(file)]:
                raise explain_received(error, received) from None
            check_places(tree, named, from_files)


def read_source(name: str | None) -> RecipeSource:
    """Read the recipe of ``recipe=``: a name, a recipe file, or a bundle."""
    if name is None or not name.endswith(".yaml"):
        chain = read_named(name)
        return RecipeSource(chain, chain.files, given=False)
    file = Path(name).expanduser()
    received = read_given(file)
    if isinstance(received, ReceivedLock):
        return RecipeSource(received.lock, [received.sent], given=True)
    chain = read_chain(received)
    return RecipeSource(chain, chain.files, given=True)
