"""A user's YAML file as plain data: no tags, no aliases, no key twice; nothing is imported."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from components.errors import RecipeError

MAX_BYTES = 1_000_000


class _DataLoader(yaml.SafeLoader):
    """YAML without tags, aliases or repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.constructor.ConstructorError(None, None, "aliases are not allowed")
        event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML is untyped here
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise yaml.constructor.ConstructorError(None, None, f"the tag {tag} is not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        repeated = [key for key in keys if keys.count(key) > 1]
        if repeated:
            problem = f"{repeated[0]!r} is given twice"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_mapping(node, deep=deep)


def read_data(file: Path, kind: str) -> dict[str, Any]:
    """Read a mapping; ``kind`` is the key of the command line that named the file.

    Raises:
        RecipeError: it cannot be read, is too large, is no plain YAML or no mapping.
    """
    try:
        if file.stat().st_size > MAX_BYTES:
            raise RecipeError(
                str(file), f"is larger than {MAX_BYTES:,} bytes", f"is it a {kind}?"
            )
        tree = yaml.load(file.read_text("utf-8"), Loader=_DataLoader)
    except FileNotFoundError:
        raise RecipeError(kind, f"there is no file {file}", "check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(kind, f"cannot read {file}: {error}", "check the file") from None
    except (yaml.YAMLError, RecursionError) as error:
        message = " ".join(str(error).split()) or "nested too deeply"
        raise RecipeError(
            kind, f"{file} is no plain YAML: {message}", "mend it there"
        ) from None
    if not isinstance(tree, dict):
        raise RecipeError(kind, f"{file} holds no mapping", f"a {kind} is key: value")
    return tree
