"""Build the objects that a recipe names; the only importer of ``hydra.utils``."""

from importlib import import_module
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from components.config.schema.types import Node, thaw
from components.config.targets import check_nodes
from components.errors import RecipeError


def build(node: Node, path: str) -> Any:
    """Build a ``_target_`` node, and the nodes inside it, behind the gate.

    Raises:
        RecipeError: a node fails the gate, its class was imported from elsewhere, or a
            constructor refuses a value.
    """
    tree = thaw(node)
    check_nodes({path: tree})
    _check_homes(tree, path)
    try:
        return instantiate(tree, _convert_="all")
    except InstantiationException as failure:  # Hydra's wrapping hides what a constructor said
        cause = failure.__cause__
        if isinstance(cause, RecipeError):
            raise cause from None
        if isinstance(cause, TypeError | AttributeError):  # a part in the place of another
            remedy = f"see conf/{path.partition('.')[0]}/ for which part stands where"
            raise RecipeError(path, f"cannot be built: {cause}", remedy) from failure
        raise


def _check_homes(tree: Any, path: str) -> None:
    """A name at the top of a module may still be another module's class."""
    if isinstance(tree, list):
        for index, item in enumerate(tree):
            _check_homes(item, f"{path}[{index}]")
    if not isinstance(tree, dict):
        return
    if "_target_" in tree:
        module, _, name = tree["_target_"].rpartition(".")
        found = getattr(import_module(module), name, None)
        if not isinstance(found, type) or found.__module__ != module:
            problem = f"{tree['_target_']} is not defined in {module}"
            raise RecipeError(f"{path}._target_", problem, "name a class where it is defined")
    for key, item in tree.items():
        _check_homes(item, f"{path}.{key}")
