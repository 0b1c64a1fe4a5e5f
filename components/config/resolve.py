"""From the composed tree to the settled one: check what rules read, shrink, deal the ranks."""

from collections.abc import Iterable, Mapping

from components.config.layout import deal_ranks, settle_layout, settle_smoke
from components.config.rules.data import check_phases
from components.config.scale_down import scale_down
from components.config.schema.recipe import Recipe, check_recipe, read_section
from components.config.schema.sections import ScaleSection, Shrink
from components.config.shape import ModelShape
from components.config.targets import check_nodes
from components.config.user_overrides import Tree, UserOverrides, leaves
from components.errors import RecipeError

MISSING = "???"
CHOICES = {"device"}  # where ``auto`` is a choice, not a number to derive


def resolve(tree: Tree, named_keys: Iterable[str], full: Tree) -> Recipe:
    """Apply the scale's rule to what the user did not name, settle the layout, check it all.

    ``full`` is the composed tree before the user's keys went in.

    Raises:
        RecipeError: whatever is wrong, with its YAML path.
    """
    named = UserOverrides(named_keys)
    _check_present(tree)
    check_nodes(tree)
    _check_sections(tree)
    _drop_unshared(tree, named)
    settle_smoke(tree, named)
    scale = read_section(ScaleSection, tree["scale"], "scale")
    if isinstance(scale.shrink, Shrink):
        scale_down(tree, scale.shrink, named, full)
        deal_ranks(tree, scale.shrink.microbatch_sequences, named)
    settle_layout(tree, named)
    return check_recipe(tree)


def resolve_template(tree: Tree, named_keys: Iterable[str]) -> Recipe:
    """Check all but the layout, for a search that will choose one; ``auto`` is 1 until then.

    Raises:
        RecipeError: a key or a type is wrong, with its YAML path.
    """
    _check_present(tree)
    check_nodes(tree)
    _check_sections(tree)
    _drop_unshared(tree, UserOverrides(named_keys))
    return read_section(Recipe, _without_auto(tree), "")


def _check_present(tree: Tree) -> None:
    for path, value in leaves(tree):
        if value == MISSING:
            raise RecipeError(path, "the recipe does not set it", f"set {path}=...")


def _drop_unshared(tree: Tree, named: UserOverrides) -> None:
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
