"""Layout search of a recipe: over what layouts and nodes, what came of it, or why nothing."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import inf, prod
from typing import Any

from components.config.layout import AXES, SMOKE_NODES
from components.config.resolve import resolve, resolve_template
from components.config.schema.recipe import Recipe
from components.config.schema.sections import Parallelism
from components.errors import RecipeError
from components.planner.layouts import (
    SEARCHED,
    fewest_nodes,
    has_layout,
    most_nodes,
    near_nodes,
)
from components.planner.plan import plan_recipe
from components.planner.search import LayoutSearch, hardware_of, search_layouts
from components.planner.search_result import GIB, describe


def _explain_nothing(
    template: Recipe, nodes: int, fixed: frozenset[str], search: LayoutSearch
) -> RecipeError:
    """Return whether rules, named keys or memory leave nothing, and the nearest way out."""
    cluster = template.cluster
    where = f"{nodes:,} nodes of {cluster.name} ({search.ranks:,} ranks)"
    if not search.legal:
        freed = _freeing(template, nodes, fixed)
        if freed:
            values = ((key, getattr(template.parallelism, key)) for key in freed)
            named = ", ".join(f"parallelism.{key}={value}" for key, value in values)
            problem = f"auto: with {named} no layout is legal on {where}"
            return RecipeError("parallelism", problem, f"leave one of these out: {named}")
        counts = ", ".join(f"{count:,}" for count in _nearest(template, nodes, fixed))
        remedy = f"the nearest numbers of nodes that have one: cluster.nodes={counts}"
        problem = f"auto: no layout is legal on {where}"
        return RecipeError("parallelism", problem, remedy if counts else "name fewer keys")
    assert search.nearest is not None, "legal layouts that do not fit were looked at"
    degrees, peak = search.nearest
    problem = (
        f"auto: none of {search.legal:,} legal layouts fits {where}; the nearest, "
        f"{describe(degrees)}, needs {peak / GIB:.1f} GiB a device of "
        f"{search.usable_bytes / GIB:.1f}"
    )
    return RecipeError("parallelism", problem, _ways(template, nodes, fixed))


def _ways(template: Recipe, nodes: int, fixed: frozenset[str]) -> str:
    """Try what would make it fit: named keys set free, then more nodes."""
    ways = [
        f"leave parallelism.{key}={getattr(template.parallelism, key)} out"
        for key in sorted(fixed)
        if _search(template, nodes, fixed - {key}).best
    ]
    more = (nodes * factor for factor in (2, 3, 4, 6, 8, 12, 16, 32))
    most = most_nodes(template.cluster)
    enough = next((n for n in more if n <= most and _search(template, n, fixed).best), None)
    if enough is not None:
        ways.append(f"cluster.nodes={enough}")
    if not ways:
        return "no more nodes help; use another cluster"
    return f"what fits: {', or '.join(ways)}"


def _search(template: Recipe, nodes: int, fixed: frozenset[str]) -> LayoutSearch:
    ranks = nodes * template.cluster.devices_per_node
    return search_layouts(template, ranks=ranks, fixed=fixed)


def _freeing(template: Recipe, nodes: int, fixed: frozenset[str]) -> tuple[str, ...]:
    """Name the keys without any one of which there is a layout, or all if it takes several."""
    alone = [key for key in sorted(fixed) if has_layout(template, nodes, fixed - {key})]
    if alone or not fixed:
        return tuple(alone)
    return tuple(sorted(fixed)) if has_layout(template, nodes, frozenset()) else ()


def _nearest(template: Recipe, nodes: int, fixed: frozenset[str]) -> Iterable[int]:
    counts = range(1, min(4 * nodes, most_nodes(template.cluster)) + 1)
    near = sorted(counts, key=lambda count: abs(count - nodes))
    found = (count for count in near if has_layout(template, count, fixed))
    return sorted(count for count, _ in zip(found, range(3), strict=False))


NODES, RANKS = "cluster.nodes", "cluster.ranks"


class Question:
    """A composed tree whose layout is open, and the keys that the user named in it.

    ``full`` is the tree before the user's keys went in: its degrees are the published ones.
    """

    def __init__(
        self, tree: dict[str, Any], values: Mapping[str, Any], full: dict[str, Any]
    ) -> None:
        self._tree, self.full = tree, full
        self.named = {key: value for key, value in values.items() if value != "auto"}
        self.template = resolve_template(deepcopy(tree), self.named)
        prefix = "parallelism."
        keys = {key.removeprefix(prefix) for key in self.named if key.startswith(prefix)}
        self.fixed = frozenset(keys & {*SEARCHED, "data_shard"})

    def settled(self, degrees: Parallelism, nodes: int) -> Recipe:
        """Settle and check the recipe as if the user had named these degrees."""
        keys = [*SEARCHED, "data_shard"]
        found = {f"parallelism.{key}": getattr(degrees, key) for key in keys}
        return self._settle({**found, NODES: nodes})

    def published(self, nodes: int) -> Recipe:
        """Settle the recipe on these nodes without a search.

        Raises:
            RecipeError: its published layout cannot run there.
        """
        return self._settle({NODES: nodes})

    def _settle(self, found: Mapping[str, Any]) -> Recipe:
        tree = deepcopy(self._tree)
        tree["cluster"]["ranks"] = "auto"
        for key, value in found.items():
            section, _, name = key.partition(".")
            tree[section][name] = list(value) if isinstance(value, tuple) else value
        return resolve(tree, [*self.named, *found], self.full)


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The recipe with the best layout, the search, and the published layout beside it.

    ``published`` is null where the rules refuse that layout there, as ``refusal`` says.
    """

    recipe: Recipe
    search: LayoutSearch
    published: Recipe | None
    refusal: str


def find_layout(question: Question, *, within_days: float | None) -> SearchResult:
    """Search for the best layout on the nodes that are named, published or fewest in time.

    Raises:
        RecipeError: no layout is legal, fits or is in time; a miniature; a cluster that nobody
            measured.
    """
    hardware_of(question.template)
    if not isinstance(question.template.scale.shrink, str):
        raise RecipeError(
            "parallelism",
            f"auto, but at scale={question.template.scale.name} ranks are dealt by rule",
            "leave parallelism=auto out, or add scale=full",
        )
    nodes = _nodes(question, within_days)
    search = _search(question.template, nodes, question.fixed)
    if not search.best:
        raise _explain_nothing(question.template, nodes, question.fixed, search)
    try:
        published, refusal = question.published(nodes), ""
    except RecipeError as error:
        published, refusal = None, f"{error.path}: {error.problem}"
    return SearchResult(
        recipe=question.settled(search.best[0].degrees, nodes),
        search=search,
        published=published,
        refusal=refusal,
    )


def _nodes(question: Question, within_days: float | None) -> int:
    named, cluster = question.named, question.template.cluster
    given = [key for key in (NODES, RANKS) if key in named]
    if within_days is not None:
        return _nodes_in_time(question, within_days, given)
    if NODES in given:
        return cluster.nodes
    if RANKS in given:
        whole, rest = divmod(cluster.ranks, devices := cluster.devices_per_node)
        if rest:
            below, above = max(whole, 1) * devices, (whole + 1) * devices
            problem = f"{cluster.ranks} ranks do not fill nodes of {devices} devices"
            raise RecipeError(RANKS, problem, f"the nearest that do: {below} and {above}")
        return whole
    if cluster.smoke:
        return SMOKE_NODES
    degrees = question.full["parallelism"]
    ranks = prod(1 if degrees[axis] == "auto" else degrees[axis] for axis in AXES)
    counts = list(near_nodes(cluster, ranks))
    if len(counts) == 1:
        return counts[0]
    found = {nodes: _search(question.template, nodes, question.fixed).best for nodes in counts}
    return min(counts, key=lambda n: n * found[n][0].cost if found[n] else inf)


def _nodes_in_time(question: Question, within_days: float, given: list[str]) -> int:
    if given:
        problem = f"{within_days:g}, but {given[0]} says how many nodes there are"
        raise RecipeError("within_days", problem, f"leave out one of the two, or {NODES}=auto")

    def days_on(nodes: int) -> float | None:
        search = _search(question.template, nodes, question.fixed)
        if not search.best:
            return None
        bill = plan_recipe(question.settled(search.best[0].degrees, nodes)).bill
        return bill.days if bill else None

    return fewest_nodes(
        question.template, question.fixed, within_days=within_days, days_on=days_on
    )
