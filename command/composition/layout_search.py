"""What the planner chooses for a recipe: its layout, or what it recomputes."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from math import inf, prod
from typing import Any

from components.config.check import change_recipe
from components.config.layout import SMOKE_NODES
from components.config.recipe import Recipe
from components.config.resolve import leaves_recompute_open, resolve, resolve_template
from components.config.schema.sections import AXES, Parallelism
from components.errors import RecipeError
from components.planner.layouts import (
    SEARCHED,
    fewest_nodes,
    has_layout,
    most_nodes,
    near_nodes,
)
from components.planner.memory import GIB
from components.planner.plan import plan_recipe
from components.planner.queues import takes_runs
from components.planner.recompute import NOTHING, Choice, least_that_fits
from components.planner.search import LayoutSearch, describe, hardware_of, search_layouts

NODES, RANKS = "cluster.nodes", "cluster.ranks"
PREFIX = "parallelism."
DEGREES = (*SEARCHED, "data_shard")


def resolve_with_recompute(
    tree: dict[str, Any],
    values: Iterable[str],
    full: dict[str, Any],
    *,
    reads_files: bool = True,
) -> Recipe:
    """Resolve a tree; ``recompute: auto`` becomes the least that fits, and is recorded as that.

    Raises:
        RecipeError: whatever is wrong, with its YAML path.
    """
    if not leaves_recompute_open(tree):
        return resolve(tree, values, full, reads_files=reads_files)
    plain = resolve(_with_choice(tree, NOTHING), values, full, reads_files=reads_files)
    choice = least_that_fits(plain)
    degrees = plain.model_dump(mode="json")["parallelism"] | _keys_of(choice)
    return change_recipe(plain, {"parallelism": degrees})


def _with_choice(tree: dict[str, Any], choice: Choice) -> dict[str, Any]:
    return {**deepcopy(tree), "parallelism": {**tree["parallelism"], **_keys_of(choice)}}


def _keys_of(choice: Choice) -> dict[str, Any]:
    return {"recompute": choice.recompute, "recompute_every": choice.every}


class SearchProblem:
    """A composed tree whose layout is open, and the keys that the user named in it.

    ``full`` is the tree before the user's keys went in: its degrees are the published ones.
    ``fixed`` are the named degrees.
    """

    def __init__(
        self, tree: dict[str, Any], values: Mapping[str, Any], full: dict[str, Any]
    ) -> None:
        self._tree, self.full = tree, full
        self.named = {key: value for key, value in values.items() if value != "auto"}
        is_open = leaves_recompute_open(tree)
        template = _with_choice(tree, NOTHING) if is_open else deepcopy(tree)
        self.template = resolve_template(template, self.named)
        self.fixed = frozenset(key for key in DEGREES if f"{PREFIX}{key}" in self.named)

    def resolved(self, nodes: int, degrees: Parallelism | None = None) -> Recipe:
        """Resolve the recipe as if the user had named these nodes and degrees, if any.

        Raises:
            RecipeError: its layout, else the published one, cannot run there.
        """
        found: dict[str, Any] = {NODES: nodes}
        if degrees is not None:
            found |= {f"{PREFIX}{key}": getattr(degrees, key) for key in DEGREES}
        tree = deepcopy(self._tree)
        tree["cluster"]["ranks"] = "auto"
        for key, value in found.items():
            section, _, name = key.partition(".")
            tree[section][name] = list(value) if isinstance(value, tuple) else value
        return resolve_with_recompute(tree, [*self.named, *found], self.full)

    def search(self, nodes: int, *, free: str = "") -> LayoutSearch:
        """Search on these nodes, one named degree set ``free``."""
        ranks = nodes * self.template.cluster.devices_per_node
        return search_layouts(self.template, ranks=ranks, fixed=self.fixed - {free})


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The recipe with the best layout, the search, and the published one or its ``refusal``."""

    recipe: Recipe
    search: LayoutSearch
    published: Recipe | None
    refusal: str


def find_layout(question: SearchProblem, *, within_days: float | None) -> SearchResult:
    """Search for the best layout on the nodes that are named, published or fewest in time.

    Raises:
        RecipeError: no layout is legal, fits or is in time; a miniature, an unmeasured cluster.
    """
    hardware_of(question.template)
    if not isinstance((scale := question.template.scale).shrink, str):
        problem = f"auto, but at scale={scale.name} ranks are dealt by rule"
        raise RecipeError(
            "parallelism", problem, "leave parallelism=auto out, or add scale=full"
        )
    nodes = _nodes(question, within_days)
    search = question.search(nodes)
    if not search.best:
        raise _explain_nothing(question, nodes, search)
    try:
        published, refusal = question.resolved(nodes), ""
    except RecipeError as error:
        published, refusal = None, f"{error.path}: {error.problem}"
    recipe = question.resolved(nodes, search.best[0].degrees)
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
            raise RecipeError(RANKS, problem, f"the nearest that do: {below} and {above}")
        return whole
    if cluster.smoke:
        return SMOKE_NODES
    degrees = question.full["parallelism"]
    ranks = prod(1 if degrees[axis] == "auto" else degrees[axis] for axis in AXES)
    counts = list(near_nodes(cluster, ranks))
    if len(counts) == 1:
        return counts[0]
    found = {nodes: question.search(nodes).best for nodes in counts}
    return min(counts, key=lambda n: n * found[n][0].cost if found[n] else inf)


def _nodes_in_time(question: SearchProblem, within_days: float) -> int:
    for key in (NODES, RANKS):
        if key in question.named:
            problem = f"{within_days:g}, but {key} says how many nodes there are"
            remedy = f"leave out one of the two, or {NODES}=auto"
            raise RecipeError("within_days", problem, remedy)

    def days_on(nodes: int) -> float | None:
        search = question.search(nodes)
        if not search.best:
            return None
        bill = plan_recipe(question.resolved(nodes, search.best[0].degrees)).bill
        return bill.days if bill else None

    return fewest_nodes(
        question.template, question.fixed, within_days=within_days, days_on=days_on
    )


def _explain_nothing(question: SearchProblem, nodes: int, search: LayoutSearch) -> RecipeError:
    """Return whether rules, named keys or memory leave nothing, and the nearest way out."""
    where = f"{nodes:,} nodes of {question.template.cluster.name} ({search.ranks:,} ranks)"
    if not search.legal:
        if freed := _freeing(question, nodes):
            named = ", ".join(_written(question, key) for key in freed)
            problem = f"auto: with {named} no layout is legal on {where}"
            return RecipeError("parallelism", problem, f"leave one of these out: {named}")
        counts = ", ".join(f"{count:,}" for count in _nearest(question, nodes))
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
    # What would make it fit: named keys set free, then more nodes.
    ways = [
        f"leave {_written(question, key)} out"
        for key in sorted(question.fixed)
        if question.search(nodes, free=key).best
    ]
    cluster = question.template.cluster
    most = most_nodes(cluster)
    more = (nodes * factor for factor in (2, 3, 4, 6, 8, 12, 16, 32))
    taken = (n for n in more if n <= most and takes_runs(cluster, n))
    enough = next((n for n in taken if question.search(n).best), None)
    ways += [] if enough is None else [f"{NODES}={enough}"]
    remedy = f"what fits: {', or '.join(ways)}"
    remedy = remedy if ways else "no more nodes help; use another cluster"
    return RecipeError("parallelism", problem, remedy)


def _written(question: SearchProblem, key: str) -> str:
    return f"{PREFIX}{key}={getattr(question.template.parallelism, key)}"


def _freeing(question: SearchProblem, nodes: int) -> list[str]:
    """Name the keys without any one of which there is a layout, or all if it takes several."""
    fixed, template = sorted(question.fixed), question.template
    alone = [key for key in fixed if has_layout(template, nodes, question.fixed - {key})]
    return alone or (fixed if fixed and has_layout(template, nodes, frozenset()) else [])


def _nearest(question: SearchProblem, nodes: int) -> list[int]:
    cluster = question.template.cluster
    most = min(4 * nodes, most_nodes(cluster))
    taken = (count for count in range(1, most + 1) if takes_runs(cluster, count))
    near = sorted(taken, key=lambda count: abs(count - nodes))
    legal = (n for n in near if has_layout(question.template, n, question.fixed))
    return sorted(islice(legal, 3))
