"""A recipe whose layout is searched for: in what, on how many nodes, and what comes of it."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import inf, prod
from typing import Any

from command.unfound import explain_nothing
from components.errors import RecipeError
from components.planner.layouts import SEARCHED
from components.planner.node_counts import fewest_nodes, near_nodes
from components.planner.plan import plan_recipe
from components.planner.search import Search, hardware_of, search_layouts
from components.spec.layout import AXES, SMOKE_NODES
from components.spec.recipe import Recipe
from components.spec.sections import Parallelism
from components.spec.settle import settle, settle_template

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
        self.template = settle_template(deepcopy(tree), self.named)
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
        return settle(tree, [*self.named, *found], self.full)


@dataclass(frozen=True, kw_only=True)
class Found:
    """The recipe with the best layout, the search, and the published layout beside it.

    ``published`` is null where the rules refuse that layout there, as ``refusal`` says.
    """

    recipe: Recipe
    search: Search
    published: Recipe | None
    refusal: str


def find_layout(question: Question, *, within_days: float | None) -> Found:
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
    search = _search(question, nodes)
    if not search.best:
        raise explain_nothing(question.template, nodes, question.fixed, search)
    return _found(question, nodes, search)


def _search(question: Question, nodes: int) -> Search:
    ranks = nodes * question.template.cluster.devices_per_node
    return search_layouts(question.template, ranks=ranks, fixed=question.fixed)


def _found(question: Question, nodes: int, search: Search) -> Found:
    try:
        published, refusal = question.published(nodes), ""
    except RecipeError as error:
        published, refusal = None, f"{error.path}: {error.problem}"
    return Found(
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
        return _whole_nodes(cluster.ranks, cluster.devices_per_node)
    if cluster.smoke:
        return SMOKE_NODES
    degrees = question.full["parallelism"]
    ranks = prod(1 if degrees[axis] == "auto" else degrees[axis] for axis in AXES)
    counts = list(near_nodes(cluster, ranks))
    if len(counts) == 1:
        return counts[0]
    found = {nodes: _search(question, nodes).best for nodes in counts}
    return min(counts, key=lambda n: n * found[n][0].cost if found[n] else inf)


def _nodes_in_time(question: Question, within_days: float, given: list[str]) -> int:
    if given:
        problem = f"{within_days:g}, but {given[0]} says how many nodes there are"
        raise RecipeError("within_days", problem, f"leave out one of the two, or {NODES}=auto")

    def days_on(nodes: int) -> float | None:
        search = _search(question, nodes)
        if not search.best:
            return None
        bill = plan_recipe(question.settled(search.best[0].degrees, nodes)).bill
        return bill.days if bill else None

    return fewest_nodes(
        question.template, question.fixed, within_days=within_days, days_on=days_on
    )


def _whole_nodes(ranks: int, devices: int) -> int:
    if ranks % devices:
        below, above = max(ranks // devices, 1) * devices, (ranks // devices + 1) * devices
        problem = f"{ranks} ranks do not fill nodes of {devices} devices"
        raise RecipeError(RANKS, problem, f"the nearest that do: {below} and {above}")
    return ranks // devices
