"""Layout search: choose a recipe's parallel degrees, or its recomputation, with the planner."""

from copy import deepcopy
from dataclasses import dataclass
from math import inf, prod
from typing import Any

from command.composition.recipe_tree import RecipeTree, resolve_recipe, without_recompute
from components.config.layout import SMOKE_NODES
from components.config.recipe import Recipe
from components.config.resolve import leaves_recompute_open, resolve_template
from components.config.schema.sections import AXES, Parallelism
from components.errors import RecipeError
from components.planner.layouts import SEARCHED, fewest_nodes, near_nodes
from components.planner.memory import GIB
from components.planner.plan import plan_recipe
from components.planner.search import LayoutSearch, describe_layout, hardware_of, search_layouts

NODES, RANKS = "cluster.nodes", "cluster.ranks"
PREFIX = "parallelism."
DEGREES = (*SEARCHED, "data_shard")


class SearchProblem:
    """A composed tree with an open layout, and the keys that the user set in it.

    ``full`` is the tree before them, with the published degrees; ``fixed`` are the user's
    degrees.
    """

    def __init__(self, draft: RecipeTree) -> None:
        self._tree, self.full = draft.tree, draft.full
        self.named = {key: value for key, value in draft.values.items() if value != "auto"}
        is_open = leaves_recompute_open(draft.tree)
        template = without_recompute(draft.tree) if is_open else deepcopy(draft.tree)
        self.template = resolve_template(template, self.named)
        self.fixed = frozenset(key for key in DEGREES if f"{PREFIX}{key}" in self.named)
        self._searches: dict[int, LayoutSearch] = {}

    def resolve_candidate(self, nodes: int, degrees: Parallelism | None = None) -> Recipe:
        """Resolve the recipe with these nodes and, if given, these degrees set by the user."""
        degree_values: dict[str, Any] = {NODES: nodes}
        if degrees is not None:
            degree_values |= {f"{PREFIX}{key}": getattr(degrees, key) for key in DEGREES}
        tree = deepcopy(self._tree)
        tree["cluster"]["ranks"] = "auto"
        for key, value in degree_values.items():
            section, _, name = key.partition(".")
            tree[section][name] = list(value) if isinstance(value, tuple) else value
        return resolve_recipe(tree, [*self.named, *degree_values], self.full)

    def find_layouts(self, nodes: int) -> LayoutSearch:
        """Search for layouts on this number of nodes, once."""
        if nodes not in self._searches:
            ranks = nodes * self.template.cluster.devices_per_node
            search = search_layouts(self.template, ranks=ranks, fixed=self.fixed)
            self._searches[nodes] = search
        return self._searches[nodes]


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The recipe with the best layout, the search, and the published one or ``refusal``."""

    recipe: Recipe
    search: LayoutSearch
    published: Recipe | None
    refusal: str


def find_layout(question: SearchProblem, *, within_days: float | None) -> SearchResult:
    """Search for the best layout on the named, the published or the fewest nodes in time."""
    hardware_of(question.template)
    if not isinstance((scale := question.template.scale).shrink, str):
        problem = f"auto does not apply to scale={scale.name}, which sets the layout"
        raise RecipeError("parallelism", problem, "remove parallelism=auto, or add scale=full")
    nodes = _nodes(question, within_days)
    search = question.find_layouts(nodes)
    if not search.best:
        raise _explain_nothing(question, nodes, search)
    try:
        published, refusal = question.resolve_candidate(nodes), ""
    except RecipeError as error:
        published, refusal = None, f"{error.path}: {error.problem}"
    recipe = question.resolve_candidate(nodes, search.best[0].layout_degrees)
    return SearchResult(recipe=recipe, search=search, published=published, refusal=refusal)


def _nodes(question: SearchProblem, within_days: float | None) -> int:
    named, cluster = question.named, question.template.cluster
    if within_days is not None:
        return _nodes_in_time(question, within_days)
    if NODES in named:
        return cluster.nodes
    if RANKS in named:
        whole, rest = divmod(cluster.ranks, devices := cluster.devices_per_node)
        if rest:
            below, above = max(whole, 1) * devices, (whole + 1) * devices
            problem = f"{cluster.ranks} ranks do not fill nodes of {devices} devices"
            raise RecipeError(RANKS, problem, f"nearest valid values: {below} and {above}")
        return whole
    if cluster.smoke:
        return SMOKE_NODES
    degrees = question.full["parallelism"]
    ranks = prod(1 if degrees[axis] == "auto" else degrees[axis] for axis in AXES)
    counts = list(near_nodes(cluster, ranks))
    if len(counts) == 1:
        return counts[0]
    best = {nodes: question.find_layouts(nodes).best for nodes in counts}
    return min(counts, key=lambda n: n * best[n][0].weighted_seconds if best[n] else inf)


def _nodes_in_time(question: SearchProblem, within_days: float) -> int:
    for key in (NODES, RANKS):
        if key in question.named:
            problem = f"{within_days:g} conflicts with {key}, which sets the nodes"
            remedy = f"remove one of the two, or set {NODES}=auto"
            raise RecipeError("within_days", problem, remedy)

    def days_on(nodes: int) -> float | None:
        search = question.find_layouts(nodes)
        if not search.best:
            return None
        recipe = question.resolve_candidate(nodes, search.best[0].layout_degrees)
        bill = plan_recipe(recipe).cost_estimate
        return bill.days if bill else None

    return fewest_nodes(
        question.template, question.fixed, within_days=within_days, days_on=days_on
    )


def _explain_nothing(question: SearchProblem, nodes: int, search: LayoutSearch) -> RecipeError:
    """Return an error with the reason, rules or memory, and the keys that could change it."""
    where = f"{nodes:,} nodes of {question.template.cluster.name} ({search.ranks:,} ranks)"
    problem = f"auto: no layout is legal on {where}"
    if search.nearest is not None:
        degrees, peak = search.nearest
        problem = (
            f"auto: none of {search.legal:,} legal layouts fits {where}; the nearest, "
            f"{describe_layout(degrees)}, needs {peak / GIB:.1f} GiB per device of "
            f"{search.usable_bytes / GIB:.1f}"
        )
    degrees = question.template.parallelism
    named = [f"{PREFIX}{key}={getattr(degrees, key)}" for key in sorted(question.fixed)]
    fix = f"remove some of {', '.join(named)}, or set" if named else "set"
    return RecipeError("parallelism", problem, f"{fix} another number of nodes: {NODES}=...")
