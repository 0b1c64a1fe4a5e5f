"""Derive the layout: the number of ranks from the data degree, or the reverse."""

from collections.abc import Mapping
from math import gcd, prod
from typing import Any

from components.config.batch_ramp import BatchRamp, microbatch_sizes
from components.config.limits import check_multiple, nearest_multiples
from components.config.part_nodes import read_decoder
from components.config.rules.layout import sequence_divisor, tensor_fits
from components.config.schema.sections import AXES, Budget
from components.config.user_overrides import MutableTree, UserOverrides
from components.config.validation import read_section
from components.errors import RecipeError

OTHERS = AXES[1:]
# Placeholders of numbers that are derived later if they are ``auto``.
PLACEHOLDERS = dict.fromkeys(("data", "data_shard", "ranks", "nodes", "devices_per_node"), 1)
PLACEHOLDERS |= dict.fromkeys(("spare_nodes", "restarts"), 0)
SMOKE_NODES = 2  # the minimum for communication across nodes


def with_placeholders(section: Any) -> Any:
    """Return the section with a placeholder number for each derived ``auto``."""
    if not isinstance(section, Mapping):  # the type check refuses the section
        return section
    return {
        key: PLACEHOLDERS.get(key, value) if value == "auto" else value
        for key, value in section.items()
    }


def resolve_smoke_nodes(tree: MutableTree, named: UserOverrides) -> None:
    """Set two nodes for a smoke job unless the user names a number, or raise a RecipeError."""
    cluster, degrees = tree["cluster"], tree["parallelism"]
    if not cluster["smoke"]:
        return
    if cluster["scheduler"] == "none":
        problem = f"{cluster['name']} has no scheduler, so it cannot run a smoke job"
        raise RecipeError("cluster.smoke", problem, "remove this key, or set cluster=NAME")
    if any(named.is_overridden(f"cluster.{key}") for key in ("nodes", "ranks")):
        return
    cluster["ranks"] = SMOKE_NODES * cluster["devices_per_node"]
    others = prod(degrees[axis] for axis in OTHERS)
    if tree["scale"]["shrink"] == "none" and cluster["ranks"] % others:
        problem = f"two nodes have {cluster['ranks']} ranks, but one replica needs {others}"
        fix = "add scale=mini for a layout with degrees of 2, or set cluster.nodes=..."
        raise RecipeError("cluster.smoke", problem, fix)


def deal_ranks(tree: MutableTree, microbatch_sequences: int, named: UserOverrides) -> None:
    """Distribute a miniature's ranks over the axes that the recipe uses, doubling each in turn.

    Eight ranks of a recipe with tensor and pipeline degrees become 2 x 2 x 2. An axis has at
    most the recipe's degree, and only as far as the small model can be split. The data axis
    gets the rest. The default is one node. The microbatch size is the largest, up to
    ``microbatch_sequences``, with which every batch has enough microbatches for the pipeline
    schedule.
    """
    degrees = tree["parallelism"]
    devices = tree["cluster"]["devices_per_node"]
    left = _given_ranks(tree["cluster"]) or (1 if devices == "auto" else int(devices))
    dealt: dict[str, int] = dict.fromkeys(AXES, 1)
    for axis in AXES:
        if named.is_overridden(f"parallelism.{axis}") and isinstance(degrees[axis], int):
            dealt[axis] = degrees[axis]
            left //= dealt[axis]
    free = [axis for axis in AXES if not named.is_overridden(f"parallelism.{axis}")]
    while left > 1:
        takers = [axis for axis in free if axis != "data" and _has_room(tree, dealt, axis)]
        for taker in ["data", *takers] if "data" in free else takers:
            if left % 2 == 0:
                dealt[taker] *= 2
                left //= 2
        if left % 2 or not takers:
            dealt["data"] *= left if "data" in free else 1
            break
    for axis in AXES:
        named.set_default(tree, f"parallelism.{axis}", dealt[axis])
    if dealt["expert"] == 1:  # nothing is sent
        named.set_default(tree, "parallelism.expert_capacity_factor", None)
    named.set_default(tree, "parallelism.data_shard", "auto")
    fitting = _microbatch_sequences(tree, dealt, microbatch_sequences)
    named.set_default(tree, "parallelism.microbatch_sequences", fitting)


def _has_room(tree: MutableTree, dealt: dict[str, int], axis: str) -> bool:
    """Return whether ``axis`` may double within the recipe's degree and the small model."""
    degrees, model = tree["parallelism"], tree["model"]
    doubled = dealt[axis] * 2
    if degrees[axis] != "auto" and doubled > degrees[axis]:
        return False
    if axis in {"tensor", "context"}:
        would = dealt | {axis: doubled}
        slices = would["tensor"] if degrees["sequence_parallel"] else 1
        divisor = sequence_divisor(context=would["context"], slices=slices)
        if tree["budget"]["sequence_length"] % divisor:
            return False
    if axis == "tensor":
        return tensor_fits(read_decoder(model), doubled)
    if axis == "expert":
        return bool(model["mlp"]["num_experts"] % doubled == 0)
    if axis == "pipeline":
        stages = doubled * degrees["stages_per_rank"]
        return bool(degrees["zero"] < 3 and stages <= model["num_layers"])
    return True


def _microbatch_sequences(tree: MutableTree, dealt: dict[str, int], most: int) -> int:
    budget = read_section(Budget, tree["budget"], "budget")
    if budget.global_batch_tokens < budget.sequence_length:
        return 1  # the rules refuse such a batch
    sizes = microbatch_sizes(
        BatchRamp.from_budget(budget),
        replicas=dealt["data"] * dealt["expert"],
        pipeline=dealt["pipeline"],
        schedule=tree["parallelism"]["schedule"],
    )
    return max((size for size in sizes if size <= most), default=1)


def resolve_layout(tree: MutableTree, named: UserOverrides) -> None:
    """Derive ranks or data degree, and nodes; a RecipeError proposes valid values."""
    degrees, cluster = tree["parallelism"], tree["cluster"]
    others = prod(degrees[axis] for axis in OTHERS)
    ranks = _given_ranks(cluster)
    if ranks is not None and not named.is_overridden("parallelism.data"):
        name = "tensor x pipeline x expert x context ="
        check_multiple("cluster.ranks", ranks, name, others)
        degrees["data"] = ranks // others
    _answer(degrees, "data", 1)
    if ranks is None:
        ranks = degrees["data"] * others
    cluster["ranks"] = ranks
    _answer(degrees, "data_shard", degrees["data"] * degrees["expert"])
    _answer(cluster, "devices_per_node", ranks)
    devices = cluster["devices_per_node"]
    if ranks % devices:
        problem = f"{ranks} ranks are not a multiple of {devices} devices per node"
        unit, data = devices // gcd(others, devices), degrees["data"]
        fix = f"change parallelism.data; {nearest_multiples(data, unit)}"
        raise RecipeError("cluster.devices_per_node", problem, fix)
    _answer(cluster, "nodes", ranks // devices)
    _answer(cluster, "spare_nodes", reserve_of(cluster))
    _answer(tree["watchdog"], "restarts", cluster["spare_nodes"])


def _answer(section: Any, key: str, value: int) -> None:
    """Replace ``auto`` by a derived number."""
    if section[key] == "auto":
        section[key] = value


def reserve_of(cluster: Any) -> int:
    """Return the number of spare nodes for a job, within the limit of the largest queue."""
    nodes = cluster["nodes"]
    most = max((queue["most_nodes"] for queue in cluster["queues"]), default=None)
    wanted = int(cluster["spare_fraction"] * nodes)
    return wanted if most is None else max(0, min(wanted, most - nodes))


def _given_ranks(cluster: Any) -> int | None:
    if cluster["ranks"] != "auto":
        return int(cluster["ranks"])
    if cluster["nodes"] != "auto" and cluster["devices_per_node"] != "auto":
        return int(cluster["nodes"] * cluster["devices_per_node"])
    return None
