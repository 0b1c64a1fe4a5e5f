"""Build the objects that a recipe's ``_target_`` nodes name."""

from typing import Any

from components.config.part_nodes import read_part
from components.config.schema.types import Node, thaw


def build(node: Node, path: str) -> Any:
    """Build a node and the nodes inside it; a node with ``_partial_`` becomes a function.

    The function takes the arguments that no recipe sets, as an optimizer's ``parameters``.

    Raises:
        RecipeError: the node does not fit the specification of its class, or the constructor
            refuses a value.
    """
    spec = read_part(thaw(node), path)
    return spec.build if spec.is_partial else spec.build()
