"""Build the objects that a recipe's ``_target_`` nodes name."""

from typing import Any

from components.config.part_nodes import read_part
from components.config.schema.types import ComponentNode, to_plain


def build_node(node: ComponentNode, path: str) -> Any:
    """Build a node and the nodes inside it; a node with ``_partial_`` becomes a function.

    The function takes the arguments that no recipe sets, such as an optimizer's ``parameters``.
    Raises RecipeError if the node does not match its class, or if the constructor rejects it.
    """
    spec = read_part(to_plain(node), path)
    return spec.build_part if spec.is_partial else spec.build_part()
