"""Rules of the layout: ranks, shards, what tensor and expert ranks share, stages, schedules.

What a full-size job would refuse after minutes in the queue is refused here, from numbers.
"""

from math import lcm

from components.config.model_spec.decoder import DecoderSpec
from components.config.recipe import Recipe
from components.config.rules.attention import attention_backends
from components.config.rules.engine import check_engine, check_float8_layout
from components.config.schema.sections import AXES, Parallelism
from components.config.stages import V_SCHEDULES
from components.config.suggestions import divisors
from components.errors import RecipeError


def check_degrees(recipe: Recipe) -> None:
    """Raise a RecipeError for degrees that ranks or model refuse, whatever the microbatches."""
    _check_ranks(recipe)
    _check_shards(recipe.parallelism)
    _check_tensor(recipe)
    _check_context(recipe)
    attention_backends(recipe)
    _check_experts(recipe)
    _check_expert_bound(recipe)
    check_schedule(recipe.parallelism)
    _check_recompute(recipe)
    _check_pipeline(recipe)
    check_engine(recipe)
    check_float8_layout(recipe)


def _check_ranks(recipe: Recipe) -> None:
    degrees, cluster = recipe.parallelism, recipe.cluster
    product = degrees.ranks
    if product != cluster.ranks:
        problem = f"{degrees.product} = {product} ranks, but cluster.ranks is {cluster.ranks}"
        remedy = f"set cluster.ranks={product}, or leave one of the two to be derived"
        raise RecipeError("parallelism", problem, remedy)
    if sorted(degrees.rank_order) != sorted(AXES):
        problem = f"[{', '.join(degrees.rank_order)}] does not name each of the five axes once"
        remedy = "[pipeline, data, expert, context, tensor] does, slowest axis first"
        raise RecipeError("parallelism.rank_order", problem, remedy)


def _check_shards(degrees: Parallelism) -> None:
    """Without ZeRO nothing is sharded, so 1 and all data ranks mean the same, and no more."""
    ranks, shard = degrees.data * degrees.expert, degrees.data_shard
    if ranks % shard:
        problem = f"{shard} does not divide data x expert = {ranks}"
        near = sorted(divisors(ranks), key=lambda divisor: abs(divisor - shard))[:12]
        remedy = f"values that do: {', '.join(map(str, sorted(near)))}"
        raise RecipeError("parallelism.data_shard", problem, remedy)
    if shard % degrees.expert and (degrees.zero or shard > 1):
        problem = f"{shard} ranks cannot hold whole groups of {degrees.expert} expert ranks"
        remedy = f"use a multiple of parallelism.expert={degrees.expert}"
        raise RecipeError("parallelism.data_shard", problem, remedy)
    if degrees.zero == 0 and shard not in {1, ranks}:
        problem = f"{shard} ranks would share a sharded copy, but at zero=0 nothing is sharded"
        remedy = "leave data_shard out, or set parallelism.zero=1"
        raise RecipeError("parallelism.data_shard", problem, remedy)


def tensor_fits(shape: DecoderSpec, tensor: int) -> bool:
    """Whether ``tensor`` ranks can hold equal parts of all that is cut.

    Heads, feed-forward width and vocabulary rows are; where there are fewer key/value heads
    than ranks, each is copied to as many ranks as share it.
    """
    attention = shape.attention
    cut = (attention.num_heads, shape.mlp.ffn_dim, shape.padded_vocab_size)
    return _share_groups(attention.num_kv_heads, tensor) and not any(n % tensor for n in cut)


def _share_groups(groups: int, tensor: int) -> bool:
    return groups % tensor == 0 or tensor % groups == 0


def _check_tensor(recipe: Recipe) -> None:
    shape, tensor = recipe.shape, recipe.parallelism.tensor
    heads, groups = shape.attention.num_heads, shape.attention.num_kv_heads
    apart, width = not _share_groups(groups, tensor), shape.mlp.ffn_dim
    undivided = {
        f"{tensor} does not divide model.attention.num_heads {heads}": heads % tensor,
        f"{tensor} and model.attention.num_kv_heads {groups} do not divide each other": apart,
        f"{tensor} does not divide model.mlp.ffn_dim {width:,}": width % tensor,
    }
    for problem, broken in undivided.items():
        if broken:
            fitting = [str(n) for n in range(1, heads + 1) if tensor_fits(shape, n)]
            remedy = f"values that fit the model: {', '.join(fitting)}"
            raise RecipeError("parallelism.tensor", problem, remedy)
    rows = shape.padded_vocab_size
    if rows % tensor:
        problem = f"{rows:,} rows do not divide among {tensor} tensor ranks"
        remedy = f"the next multiple: {rows + tensor - rows % tensor:,}"
        raise RecipeError("model.padded_vocab_size", problem, remedy)
    length = recipe.budget.sequence_length
    if recipe.parallelism.sequence_parallel and length % tensor:
        given = f"budget.sequence_length {length:,}"
        problem = f"{given} does not divide among {tensor} tensor ranks"
        longer = f"{length + tensor - length % tensor:,}"
        remedy = f"set sequence_parallel=false, or a sequence_length of {longer}"
        raise RecipeError("parallelism.sequence_parallel", problem, remedy)


def sequence_divisor(*, context: int, slices: int) -> int:
    """Return what must divide the tokens of a sequence for its ranks to hold equal parts.

    A context rank holds two chunks, which its sequence-parallel tensor ranks cut in ``slices``.
    """
    return slices if context == 1 else context * lcm(2, slices)


def _check_context(recipe: Recipe) -> None:
    degrees, length = recipe.parallelism, recipe.budget.sequence_length
    if degrees.context == 1:
        return
    slices = degrees.tensor if degrees.sequence_parallel else 1
    divisor = sequence_divisor(context=degrees.context, slices=slices)
    if length % divisor:
        below = length - length % divisor
        chunks = f"each of {degrees.context} ranks holds two chunks"
        problem = f"budget.sequence_length {length:,} does not divide by {divisor}: {chunks}"
        nearest = f"{f'{below:,} and ' if below else ''}{below + divisor:,}"
        raise RecipeError("parallelism.context", problem, f"the nearest that do: {nearest}")
    places = recipe.shape.positions.num_positions
    if places is not None and places < length:
        problem = f"{places:,} learned positions for {length:,} tokens"
        remedy = f"use {length:,} or more, or shorten budget.sequence_length"
        raise RecipeError("model.positions.num_positions", problem, remedy)


def _check_experts(recipe: Recipe) -> None:
    experts, degrees = recipe.shape.mlp.num_experts, recipe.parallelism
    if experts is None:
        if degrees.expert > 1:
            problem = f"{degrees.expert} ranks for experts, but the model has none"
            remedy = "set parallelism.expert=1; parallelism.data is the axis of dense models"
            raise RecipeError("parallelism.expert", problem, remedy)
        if (parts := degrees.expert_overlap) > 1:
            problem = f"{parts} parts of what goes to experts, but the model has none"
            remedy = "set parallelism.expert_overlap=1"
            raise RecipeError("parallelism.expert_overlap", problem, remedy)
        return
    if experts % degrees.expert:
        problem = f"{degrees.expert} ranks cannot share model.mlp.num_experts {experts} evenly"
        remedy = f"values that do: {', '.join(map(str, divisors(experts)))}"
        raise RecipeError("parallelism.expert", problem, remedy)
    if degrees.tensor > 1:
        problem = f"{degrees.tensor}: experts are not split over this axis, here as in Optimus"
        remedy = "set parallelism.tensor=1, and parallelism.expert for experts that do not fit"
        raise RecipeError("parallelism.tensor", problem, remedy)
    pieces = degrees.data_shard * degrees.context
    if degrees.zero == 3 and degrees.expert > 1:
        problem = f"3 would gather what {degrees.expert} expert ranks divide already"
        remedy = "set parallelism.zero=1 or 2, or parallelism.expert=1"
        raise RecipeError("parallelism.zero", problem, remedy)
    if degrees.zero == 3 and degrees.engine == "mesh" and experts % pieces:
        problem = f"3 deals whole experts, and {pieces} ranks do not divide {experts} of them"
        remedy = f"set parallelism.data_shard to a divisor of {experts}, or parallelism.zero=1"
        raise RecipeError("parallelism.zero", problem, remedy)


def _check_expert_bound(recipe: Recipe) -> None:
    degrees, mlp = recipe.parallelism, recipe.model["mlp"]
    if degrees.expert_bound is None:
        return
    refusals = {
        "with parallelism.expert=1 nothing is sent": (degrees.expert == 1, ""),
        "parallelism.expert_dispatch=all_gather sends every rank all tokens": (
            degrees.expert_dispatch == "all_gather",
            ", or parallelism.expert_dispatch=all_to_all",
        ),
        "model.mlp.path=loop asks the host before each expert": (
            mlp.get("path") == "loop",
            ", or model.mlp.path=auto",
        ),
    }
    for problem, (is_so, other) in refusals.items():
        if is_so:
            path, remedy = (
                "parallelism.expert_bound",
                f"set parallelism.expert_bound=null{other}",
            )
            raise RecipeError(path, f"{degrees.expert_bound:g}, but {problem}", remedy)


def check_schedule(degrees: Parallelism) -> None:
    """Raise a RecipeError unless a rank, a single one too, has the stages of its schedule."""
    schedule, stages = degrees.schedule, degrees.stages_per_rank
    if schedule in V_SCHEDULES:
        if stages != 2:
            problem = f"{schedule} has two stages on each rank, not {stages}"
            remedy = "set parallelism.stages_per_rank=2, or parallelism.schedule=interleaved"
            raise RecipeError("parallelism.stages_per_rank", problem, remedy)
        return
    several = schedule in {"interleaved", "zero_bubble"}
    if several == (stages > 1):
        return
    wants = "needs several stages" if several else "has one stage"
    problem = f"{schedule} {wants} on each rank, not {stages}"
    number, other = (2, "1f1b") if several else (1, "interleaved")
    remedy = f"set parallelism.stages_per_rank={number}, or parallelism.schedule={other}"
    raise RecipeError("parallelism.stages_per_rank", problem, remedy)


def _check_recompute(recipe: Recipe) -> None:
    degrees, layers = recipe.parallelism, recipe.shape.num_layers
    every = degrees.recompute_every
    if every > 1 and degrees.recompute in {"none", ()}:
        problem = f"{every}, but parallelism.recompute=none: no layer is recomputed"
        remedy = "set parallelism.recompute=selective or full, or parallelism.recompute_every=1"
        raise RecipeError("parallelism.recompute_every", problem, remedy)
    if every > layers:
        problem = f"{every}, but model.num_layers is {layers}: only the first is recomputed"
        raise RecipeError("parallelism.recompute_every", problem, f"use 1 to {layers}")


def _check_pipeline(recipe: Recipe) -> None:
    degrees, layers = recipe.parallelism, recipe.shape.num_layers
    pipeline, stages = degrees.pipeline, degrees.stages_per_rank
    if pipeline == 1:
        return
    if degrees.zero == 3:
        gather = "would gather every parameter again for each microbatch"
        problem = f"3 with {pipeline} pipeline stages {gather}"
        remedy = "set parallelism.zero=1 or 2, or parallelism.pipeline=1"
        raise RecipeError("parallelism.zero", problem, remedy)
    if pipeline * stages > layers:
        need = f"{pipeline} ranks x {stages} stages need as many layers"
        fitting = f"parallelism.pipeline={max(1, layers // stages)}"
        remedy = f"the most that has a layer on each stage: {fitting}"
        problem = f"{need}, model.num_layers is {layers}"
        raise RecipeError("parallelism.pipeline", problem, remedy)
    if (leading := recipe.shape.leading_layers) >= len(recipe.stages[0]):
        problem = f"the first of {pipeline * stages} stages has none but the {leading} layers"
        remedy = "use fewer stages: each hands on what its routers did"
        raise RecipeError("parallelism.pipeline", f"{problem} without experts", remedy)
