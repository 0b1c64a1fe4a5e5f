"""Settle the number of ranks and the data degree, one from the other."""

from math import prod
from typing import Any

from components.config.batch_ramp import fits_schedule, nearest_multiples
from components.config.part_nodes import read_decoder
from components.config.rules.layout import sequence_divisor, tensor_fits
from components.config.schema.sections import AXES
from components.config.user_overrides import Tree, UserOverrides
from components.errors import RecipeError

OTHERS = AXES[1:]
SMOKE_NODES = 2  # the fewest on which ranks talk across nodes


def settle_smoke(tree: Tree, named: UserOverrides) -> None:
    """Give a smoke job two nodes unless the user says how many, or raise a RecipeError."""
    cluster, degrees = tree["cluster"], tree["parallelism"]
    if not cluster["smoke"]:
        return
    if cluster["scheduler"] == "none":
        problem = f"{cluster['name']} has no scheduler: there is no job to try"
        raise RecipeError("cluster.smoke", problem, "leave it out, or name a cluster=...")
    if any(named.covers(f"cluster.{key}") for key in ("nodes", "ranks")):
        return
    cluster["ranks"] = SMOKE_NODES * cluster["devices_per_node"]
    others = prod(degrees[axis] for axis in OTHERS)
    if tree["scale"]["shrink"] == "none" and cluster["ranks"] % others:
        nodes = f"two nodes of {cluster['name']} are {cluster['ranks']} ranks"
        problem = f"{nodes}, one replica of this layout has {others}"
        remedy = "add scale=mini: the same layout in twos; or set cluster.nodes=..."
        raise RecipeError("cluster.smoke", problem, remedy)


def deal_ranks(tree: Tree, microbatch_sequences: int, named: UserOverrides) -> None:
    """Deal a miniature's ranks in twos to the axes that the recipe uses, round by round.

    Eight ranks of a recipe with tensor and pipeline degrees become 2 x 2 x 2. What the recipe
    uses, and what the small model has room for, is also the most that an axis gets; what is
    left over goes to data. Who says neither ranks nor nodes has one node. Microbatches are the
    largest, up to ``microbatch_sequences``, of which every batch has as many as the pipeline's
    schedule needs.
    """
    degrees = tree["parallelism"]
    devices = tree["cluster"]["devices_per_node"]
    left = _given_ranks(tree["cluster"]) or (1 if devices == "auto" else int(devices))
    dealt: dict[str, int] = dict.fromkeys(AXES, 1)
    for axis in AXES:
        if named.covers(f"parallelism.{axis}") and isinstance(degrees[axis], int):
            dealt[axis] = degrees[axis]
            left //= dealt[axis]
    free = [axis for axis in AXES if not named.covers(f"parallelism.{axis}")]
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
        named.put(tree, f"parallelism.{axis}", dealt[axis])
    if dealt["expert"] == 1:  # nothing is sent
        named.put(tree, "parallelism.expert_bound", None)
    named.put(tree, "parallelism.data_shard", "auto")
    fitting = _microbatch_sequences(tree, dealt, microbatch_sequences)
    named.put(tree, "parallelism.microbatch_sequences", fitting)


def _has_room(tree: Tree, dealt: dict[str, int], axis: str) -> bool:
    """Whether ``axis`` may double: the recipe goes that far, and the small model does too."""
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


def _microbatch_sequences(tree: Tree, dealt: dict[str, int], most: int) -> int:
    degrees, budget = tree["parallelism"], tree["budget"]
    data_ranks = dealt["data"] * dealt["expert"]
    batches = [budget["global_batch_tokens"]]
    if budget["ramp_up"] != "none":
        ramp = budget["ramp_up"]
        steps = range(ramp["start_tokens"], batches[0], ramp["increment_tokens"])
        batches = [*steps, *batches]
    shares = [tokens // budget["sequence_length"] // data_ranks for tokens in batches]
    pipeline, schedule = dealt["pipeline"], degrees["schedule"]

    def fits(size: int) -> bool:
        whole = all(share >= size and share % size == 0 for share in shares)
        counts = {share // size for share in shares}
        fit = (fits_schedule(n, pipeline=pipeline, schedule=schedule) for n in counts)
        return whole and all(fit)

    return max(filter(fits, range(1, most + 1)), default=1)


def settle_layout(tree: Tree, named: UserOverrides) -> None:
    """Derive ranks or data degree, and nodes; a RecipeError proposes the nearest that fit."""
    degrees, cluster = tree["parallelism"], tree["cluster"]
    others = prod(degrees[axis] for axis in OTHERS)
    ranks = _given_ranks(cluster)
    if ranks is not None and not named.covers("parallelism.data"):
        if ranks % others:
            product = f"tensor x pipeline x expert x context = {others}"
            problem = f"{ranks} are no multiple of {product}"
            raise RecipeError("cluster.ranks", problem, nearest_multiples(ranks, others))
        degrees["data"] = ranks // others
    elif degrees["data"] == "auto":
        degrees["data"] = 1
    if ranks is None:
        ranks = degrees["data"] * others
    if degrees["data_shard"] == "auto":
        degrees["data_shard"] = degrees["data"] * degrees["expert"]
    cluster["ranks"] = ranks
    if cluster["devices_per_node"] == "auto":
        cluster["devices_per_node"] = ranks
    devices = cluster["devices_per_node"]
    if ranks % devices:
        problem = f"{ranks} ranks do not fill nodes of {devices} devices"
        raise RecipeError("cluster.devices_per_node", problem, _proposal(tree, devices))
    if cluster["nodes"] == "auto":
        cluster["nodes"] = ranks // devices
    _settle_reserve(cluster, tree["watchdog"])


def _settle_reserve(cluster: Any, watchdog: Any) -> None:
    """Derive the spare nodes, and a launch for each."""
    if cluster["spare_nodes"] == "auto":
        cluster["spare_nodes"] = reserve_of(cluster)
    if watchdog["restarts"] == "auto":
        watchdog["restarts"] = cluster["spare_nodes"]


def reserve_of(cluster: Any) -> int:
    """Count the spare nodes that the profile keeps for such a job, as far as its queues go."""
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


def _proposal(tree: Tree, devices: int) -> str:
    """Name data degrees that fill whole nodes and divide the batch, else only the former."""
    budget, wanted = tree["budget"], tree["parallelism"]["data"]
    others = prod(tree["parallelism"][axis] for axis in OTHERS)
    samples = budget["global_batch_tokens"] // budget["sequence_length"]
    filling = [n for n in range(1, 2 * wanted + devices + 1) if n * others % devices == 0]
    legal = [data for data in filling if samples % data == 0] or filling
    nearest = sorted(legal, key=lambda data: abs(data - wanted))[:3]
    nodes = {data: data * others // devices for data in sorted(nearest)}
    layouts = ", ".join(f"parallelism.data={data} ({n} nodes)" for data, n in nodes.items())
    if legal is filling and samples % nearest[0]:
        layouts += f", with a batch that divides (now {samples} sequences)"
    return f"the nearest that do: {layouts}"
