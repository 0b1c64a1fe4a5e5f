"""Why a search found no layout, by how much, and what would help."""

from collections.abc import Iterable

from components.errors import RecipeError
from components.planner.comparison import GIB, describe
from components.planner.node_counts import has_layout, most_nodes
from components.planner.search import Search, search_layouts
from components.spec.recipe import Recipe


def explain_nothing(
    template: Recipe, nodes: int, fixed: frozenset[str], search: Search
) -> RecipeError:
    """Say whether rules, named keys or memory leave nothing, and the nearest way out."""
    cluster = template.cluster
    where = f"{nodes:,} nodes of {cluster.name} ({search.ranks:,} ranks)"
    if not search.legal:
        freed = _freeing(template, nodes, fixed)
        if freed:
            named = ", ".join(f"parallelism.{key}={_of(template, key)}" for key in freed)
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
        f"leave parallelism.{key}={_of(template, key)} out"
        for key in sorted(fixed)
        if _fits(template, nodes, fixed - {key})
    ]
    more = (nodes * factor for factor in (2, 3, 4, 6, 8, 12, 16, 32))
    most = most_nodes(template.cluster)
    enough = next((n for n in more if n <= most and _fits(template, n, fixed)), None)
    if enough is not None:
        ways.append(f"cluster.nodes={enough}")
    return (
        "what fits: " + ", or ".join(ways)
        if ways
        else "no more nodes help; use another cluster"
    )


def _fits(template: Recipe, nodes: int, fixed: frozenset[str]) -> bool:
    ranks = nodes * template.cluster.devices_per_node
    return bool(search_layouts(template, ranks=ranks, fixed=fixed).best)


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


def _of(template: Recipe, key: str) -> object:
    return getattr(template.parallelism, key)
