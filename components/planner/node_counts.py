"""How many nodes: those of the published ranks, or the fewest that end a run in time."""

from collections.abc import Callable, Iterator
from math import ceil

from components.config.schema.recipe import Recipe
from components.config.schema.sections import Cluster
from components.errors import RecipeError
from components.planner.layouts import Layouts

# The largest machine of a profile has 127,488 devices.
MOST_DEVICES = 131_072
# Where node-days fall with more nodes, they are taken to fall by this at most.
GAIN = 0.9


def most_nodes(cluster: Cluster) -> int:
    """Return how many nodes a job may have at most, as far as the profile knows."""
    queues = [queue.most_nodes for queue in cluster.queues if not queue.debug]
    return max(queues, default=MOST_DEVICES // cluster.devices_per_node)


def has_layout(template: Recipe, nodes: int, fixed: frozenset[str]) -> bool:
    """Whether any layout is legal on so many nodes."""
    ranks = nodes * template.cluster.devices_per_node
    return any(True for _ in Layouts(template, ranks=ranks, fixed=fixed).families())


def near_nodes(cluster: Cluster, ranks: int) -> Iterator[int]:
    """List numbers of nodes for ``ranks``: theirs if they fill nodes, else a quarter around.

    The nearest comes first.
    """
    devices, most = cluster.devices_per_node, most_nodes(cluster)
    whole, rest = divmod(ranks, devices)
    if not rest or whole >= most:
        yield min(whole, most)
        return
    span = range(max(1, 3 * whole // 4), min(5 * whole // 4 + 1, most) + 1)
    yield from sorted(span, key=lambda nodes: abs(nodes * devices - ranks))


def fewest_nodes(
    template: Recipe,
    fixed: frozenset[str],
    *,
    within_days: float,
    days_on: Callable[[int], float | None],
) -> int:
    """Go up through the numbers of nodes that have a layout until a run is over in time.

    As twice the nodes are not much more than twice as fast, numbers that are far too small
    are leapt over. ``days_on`` returns nothing where no layout fits.

    Raises:
        RecipeError: no number of nodes reaches it; the nearest is named.
    """
    cluster = template.cluster
    days: dict[int, float] = {}
    nodes, most = 1, most_nodes(cluster)
    while nodes <= most:
        found = days_on(nodes) if has_layout(template, nodes, fixed) else None
        if found is not None:
            if found <= within_days:
                return nodes
            days[nodes] = found
            if nodes >= 8 * min(days, key=days.__getitem__):
                break  # eight times the nodes of the quickest are no quicker
        node_days = min((count * each for count, each in days.items()), default=0.0)
        nodes = max(nodes + 1, ceil(GAIN * node_days / within_days))
    if not days:
        raise RecipeError(
            "within_days",
            f"{within_days:g}: no layout fits any number of nodes of {cluster.name} up to "
            f"{most:,}",
            "name fewer parallelism.* keys, or choose a cluster with more memory a device",
        )
    quickest = min(days, key=days.__getitem__)
    raise RecipeError(
        "within_days",
        f"{within_days:g}: no number of nodes of {cluster.name} gets there, as more nodes wait "
        f"longer for each other; the quickest found takes {days[quickest]:.3g} days on "
        f"{quickest:,} nodes",
        f"set within_days={ceil(days[quickest])}, or lower budget.total_tokens",
    )
