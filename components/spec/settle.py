"""From the composed tree to the settled one: check what rules read, shrink, deal the ranks."""

from collections.abc import Iterable, Mapping

from components.errors import RecipeError
from components.spec.layout import deal_ranks, settle_layout, settle_smoke
from components.spec.miniature import shrink
from components.spec.named import Named, Tree, leaves
from components.spec.recipe import Recipe, check_recipe, read_section
from components.spec.schedule_rules import check_phases
from components.spec.sections import Scale, Shrink
from components.spec.shape import ModelShape
from components.spec.targets import check_nodes

MISSING = "???"
CHOICES = {"device"}  # where ``auto`` is a choice, not a number to derive


def settle(tree: Tree, named_keys: Iterable[str], full: Tree) -> Recipe:
    """Apply the scale's rule to what the user did not name, settle the layout, check it all.

    ``full`` is the composed tree before the user's keys went in.

    Raises:
        RecipeError: whatever is wrong, with its YAML path.
    """
    named = Named(named_keys)
    _check_present(tree)
    check_nodes(tree)
    _check_sections(tree)
    _drop_unshared(tree, named)
    settle_smoke(tree, named)
    scale = read_section(Scale, tree["scale"], "scale")
    if isinstance(scale.shrink, Shrink):
        shrink(tree, scale.shrink, named, full)
        deal_ranks(tree, scale.shrink.microbatch_sequences, named)
    settle_layout(tree, named)
    return check_recipe(tree)


def settle_template(tree: Tree, named_keys: Iterable[str]) -> Recipe:
    """Check all but the layout, for a search that will choose one; ``auto`` is 1 until then.

    Raises:
        RecipeError: a key or a type is wrong, with its YAML path.
    """
    _check_present(tree)
    check_nodes(tree)
    _check_sections(tree)
    _drop_unshared(tree, Named(named_keys))
    return read_section(Recipe, _without_auto(tree), "")


def _check_present(tree: Tree) -> None:
    for path, value in leaves(tree):
        if value == MISSING:
            raise RecipeError(path, "the recipe does not set it", f"set {path}=...")


def _drop_unshared(tree: Tree, named: Named) -> None:
    """A data set is a menu: what no share asks for leaves, unless the user named it."""
    data = tree["data"]
    if data["mixture"] != "given":
        return
    sections = [data, *data["phases"].values()]
    asked = {name for section in sections for name in section["shares"]}
    data["sources"] = {
        name: source
        for name, source in data["sources"].items()
        if name in asked or named.covers(f"data.sources.{name}")
    }


def _check_sections(tree: Tree) -> None:
    """Types first, so that the rules below can count on them; ``auto`` stands for a number."""
    read_section(Recipe, _without_auto(tree), "")
    read_section(ModelShape, tree["model"], "model")
    check_phases(tree["schedule"])


def _without_auto(tree: Tree) -> Tree:
    tree = dict(tree)
    for name in ("parallelism", "cluster"):
        section = tree[name]
        if isinstance(section, Mapping):  # else it is refused where types are checked
            tree[name] = {
                key: 1 if value == "auto" and key not in CHOICES else value
                for key, value in section.items()
            }
    return tree
