"""Rules of the layout: ranks, shards, tensor and expert parallelism, stages, schedules.

The rules reject from the numbers alone what would fail in a full-size job after queueing.
"""

from math import lcm

from components.config.batch_ramp import fewest_microbatches, fits_schedule, microbatch_sizes
from components.config.limits import (
    check_at_least,
    check_at_most,
    check_divides,
    check_multiple,
    nearest_multiples,
)
from components.config.model_spec.decoder import DecoderSpec
from components.config.recipe import Recipe
from components.config.rules.attention import attention_backends, check_scans
from components.config.rules.engine import check_engine, check_float8_layout
from components.config.schema.sections import AXES, Parallelism
from components.config.stages import V_SCHEDULES
from components.errors import RecipeError


def check_degrees(recipe: Recipe) -> None:
    """Raise a RecipeError for degrees that ranks or model do not allow with any microbatch."""
    _check_ranks(recipe)
    _check_shards(recipe.parallelism)
    _check_tensor(recipe)
    _check_context(recipe)
    attention_backends(recipe)
    check_scans(recipe)
    _check_experts(recipe)
    _check_capacity_factor(recipe)
    check_schedule(recipe.parallelism)
    _check_recompute(recipe)
    _check_pipeline(recipe)
    check_engine(recipe)
    check_float8_layout(recipe)


def _check_ranks(recipe: Recipe) -> None:
    degrees, ranks = recipe.parallelism, recipe.cluster.ranks
    if degrees.num_ranks != ranks:
        problem = (
            f"{degrees.degrees_text} = {degrees.num_ranks} ranks, but cluster.ranks is {ranks}"
        )
        fix = f"set cluster.ranks={degrees.num_ranks}, or parallelism.data=auto"
        raise RecipeError("parallelism", problem, fix)
    if sorted(degrees.rank_order) != sorted(AXES):
        problem = f"[{', '.join(degrees.rank_order)}] must list each of the five axes once"
        fix = "for example, [pipeline, data, expert, context, tensor] (slowest axis first)"
        raise RecipeError("parallelism.rank_order", problem, fix)


def _check_shards(degrees: Parallelism) -> None:
    """Check ``data_shard``; without ZeRO only 1 or all data ranks, which mean the same."""
    path, shard, ranks = "parallelism.data_shard", degrees.data_shard, degrees.num_replicas
    check_divides(path, shard, "data x expert =", ranks)
    if degrees.zero or shard > 1:
        check_multiple(path, shard, "parallelism.expert", degrees.expert)
    if degrees.zero == 0 and shard not in {1, ranks}:
        problem = f"{shard}, but parallelism.zero=0 shards nothing"
        raise RecipeError(path, problem, "remove this key, or set parallelism.zero=1")


def tensor_fits(shape: DecoderSpec, tensor: int) -> bool:
    """Return whether ``tensor`` ranks can hold equal parts of all split dimensions.

    Heads, feed-forward width and vocabulary rows are split. If there are fewer key/value heads
    than ranks, several ranks hold a copy of each. Linear mixers are split by key heads.
    """
    attention = shape.attention
    mixed = (mixer.key_heads for mixer in shape.mixers.values())
    split = (attention.num_heads, shape.mlp.ffn_dim, shape.padded_vocab_size, *mixed)
    return _share_groups(attention.num_kv_heads, tensor) and not any(n % tensor for n in split)


def _share_groups(groups: int, tensor: int) -> bool:
    return groups % tensor == 0 or tensor % groups == 0


def _check_tensor(recipe: Recipe) -> None:
    shape, degrees = recipe.decoder_spec, recipe.parallelism
    tensor, rows = degrees.tensor, shape.padded_vocab_size
    heads, groups = shape.attention.num_heads, shape.attention.num_kv_heads
    for key, size, fits in (
        ("attention.num_heads", heads, heads % tensor == 0),
        ("attention.num_kv_heads", groups, _share_groups(groups, tensor)),
        ("mlp.ffn_dim", shape.mlp.ffn_dim, shape.mlp.ffn_dim % tensor == 0),
        *(
            (f"mixers.{name}.num_key_heads", mixer.key_heads, mixer.key_heads % tensor == 0)
            for name, mixer in shape.mixers.items()
        ),
    ):
        if not fits:
            fitting = [str(n) for n in range(1, heads + 1) if tensor_fits(shape, n)]
            problem = f"{tensor} does not divide model.{key} {size:,}"
            fix = f"valid values: {', '.join(fitting)}"
            raise RecipeError("parallelism.tensor", problem, fix)
    check_multiple("model.padded_vocab_size", rows, "parallelism.tensor", tensor)
    if degrees.sequence_parallel:
        length, name = recipe.budget.sequence_length, "parallelism.tensor (sequence_parallel)"
        check_multiple("budget.sequence_length", length, name, tensor)


def sequence_divisor(*, context: int, slices: int) -> int:
    """Return the required divisor of the sequence length for equal parts on all ranks.

    A context rank holds two chunks, which sequence-parallel tensor ranks split in ``slices``.
    """
    return slices if context == 1 else context * lcm(2, slices)


def _check_context(recipe: Recipe) -> None:
    degrees, length = recipe.parallelism, recipe.budget.sequence_length
    if degrees.context == 1:
        return
    slices = degrees.tensor if degrees.sequence_parallel else 1
    divisor = sequence_divisor(context=degrees.context, slices=slices)
    name = f"two chunks for each of parallelism.context={degrees.context} ranks,"
    check_multiple("budget.sequence_length", length, name, divisor)
    for name, mixer in recipe.decoder_spec.mixers.items():
        least, path = length // (2 * degrees.context), f"model.mixers.{name}.conv_size"
        part = "the tokens of a context rank's chunk, plus 1 ="
        check_at_most(path, mixer.conv_size, part, least + 1)
    positions = recipe.decoder_spec.positions.num_positions
    if positions is not None:
        path = "model.positions.num_positions"
        check_at_least(path, positions, "budget.sequence_length", length)


def _check_experts(recipe: Recipe) -> None:
    experts, degrees = recipe.decoder_spec.mlp.num_experts, recipe.parallelism
    if experts is None:
        for key in ("expert", "expert_overlap"):
            check_at_most(
                f"parallelism.{key}", getattr(degrees, key), "the maximum for a dense model,", 1
            )
        return
    check_divides("parallelism.expert", degrees.expert, "model.mlp.num_experts", experts)
    if degrees.tensor > 1:
        problem = f"{degrees.tensor}, but tensor ranks cannot split experts"
        fix = "set parallelism.tensor=1; to split the experts, set parallelism.expert"
        raise RecipeError("parallelism.tensor", problem, fix)
    if degrees.zero < 3:
        return
    if degrees.expert > 1:
        problem = f"3 would gather the experts that {degrees.expert} expert ranks split"
        fix = "set parallelism.zero=1 or 2, or parallelism.expert=1"
        raise RecipeError("parallelism.zero", problem, fix)
    ranks = degrees.data_shard * degrees.context
    if degrees.engine == "mesh" and experts % ranks:
        problem = f"3 shards by expert, but {ranks} ranks do not divide {experts} experts"
        fix = f"set parallelism.data_shard to a divisor of {experts}, or parallelism.zero=1"
        raise RecipeError("parallelism.zero", problem, fix)


def _check_capacity_factor(recipe: Recipe) -> None:
    degrees, bound = recipe.parallelism, recipe.parallelism.expert_capacity_factor
    if bound is None:
        return
    for key, value in (
        ("parallelism.expert=1", degrees.expert),
        ("parallelism.expert_dispatch=all_gather", degrees.expert_dispatch),
        ("model.mlp.path=loop", recipe.model["mlp"].get("path")),
    ):
        if key.endswith(f"={value}"):
            path = "parallelism.expert_capacity_factor"
            problem = f"{bound:g} is not supported with {key}"
            raise RecipeError(path, problem, f"set {path}=null, or change the other key")


def check_schedule(degrees: Parallelism) -> None:
    """Raise a RecipeError if ``stages_per_rank`` does not fit the schedule, even on 1 rank."""
    schedule, stages = degrees.schedule, degrees.stages_per_rank
    needs, is_legal, fitting, other = "one stage", stages == 1, 1, "interleaved"
    if schedule in V_SCHEDULES:
        needs, is_legal, fitting = "two stages", stages == 2, 2
    elif schedule in {"interleaved", "zero_bubble"}:
        needs, is_legal, fitting, other = "several stages", stages > 1, 2, "1f1b"
    if not is_legal:
        path = "parallelism.stages_per_rank"
        problem = f"{stages}, but {schedule} needs {needs} per rank"
        raise RecipeError(
            path, problem, f"set {path}={fitting}, or parallelism.schedule={other}"
        )


def _check_recompute(recipe: Recipe) -> None:
    degrees, path = recipe.parallelism, "parallelism.recompute_every"
    every = degrees.recompute_every
    if every > 1 and degrees.recompute in {"none", ()}:
        problem = f"{every}, but parallelism.recompute=none recomputes no layer"
        raise RecipeError(path, problem, f"set parallelism.recompute=selective, or {path}=1")
    check_at_most(path, every, "model.num_layers", recipe.decoder_spec.num_layers)


def _check_pipeline(recipe: Recipe) -> None:
    degrees, layers = recipe.parallelism, recipe.decoder_spec.num_layers
    path, pipeline, stages = "parallelism.pipeline", degrees.pipeline, degrees.stages_per_rank
    if pipeline == 1:
        return
    if degrees.zero == 3:
        problem = f"3 with {pipeline} stages would gather all weights for each microbatch"
        fix = "set parallelism.zero=1 or 2, or parallelism.pipeline=1"
        raise RecipeError("parallelism.zero", problem, fix)
    name = f"num_layers {layers} / stages_per_rank {stages} ="
    check_at_most(path, pipeline, name, max(1, layers // stages))
    leading = recipe.decoder_spec.leading_layers
    if leading >= len(recipe.stage_layers[0]):
        problem = f"{pipeline}: the first stage has only the {leading} layers without experts"
        raise RecipeError(path, problem, "use fewer stages; each needs a layer with experts")
    shape = recipe.decoder_spec
    if shape.pattern is None or shape.mlp.num_experts is None:
        return
    for number, stage in enumerate(recipe.stage_layers):
        if not any(shape.shape_of(layer).mlp.num_experts for layer in stage):
            problem = f"{pipeline}: no layer of stage {number} has experts"
            raise RecipeError(
                path, problem, "use fewer stages; each needs a layer with experts"
            )


def _other_sizes(recipe: Recipe) -> str:
    """Return the microbatch sizes that fit the batch, as further choices of an error's fix."""
    degrees = recipe.parallelism
    sizes = microbatch_sizes(
        recipe.batch_ramp,
        replicas=degrees.num_replicas,
        pipeline=degrees.pipeline,
        schedule=degrees.schedule,
    )
    if not sizes:
        return ""
    return f", or parallelism.microbatch_sequences={', '.join(map(str, sizes))}"


def check_microbatches(recipe: Recipe) -> None:
    """Raise a RecipeError for a batch (also of the ramp-up) that does not divide evenly."""
    degrees, length = recipe.parallelism, recipe.budget.sequence_length
    batch = recipe.batch_ramp.full_samples
    group = degrees.num_replicas * degrees.microbatch_sequences
    pipeline, schedule = degrees.pipeline, degrees.schedule
    if batch % group:
        sequences = degrees.microbatch_sequences
        parts = f"{degrees.num_replicas} data ranks x {sequences} sequences per microbatch"
        problem = f"{batch} sequences per step are not a multiple of {parts}"
        fix = f"{nearest_multiples(batch * length, group * length)}{_other_sizes(recipe)}"
        raise RecipeError("budget.global_batch_tokens", problem, fix)
    for _, _, samples in recipe.batch_ramp.batch_stages:
        count = samples // group
        if fits_schedule(count, pipeline=pipeline, schedule=schedule):
            continue
        fewest = fewest_microbatches(pipeline, schedule)
        need = f"at least {fewest}"
        if count >= fewest:
            need = f"a multiple of {count // pipeline} (rounds)"
        tokens = fewest * group * length
        fix = f"set the batch to a multiple of {tokens:_} tokens{_other_sizes(recipe)}"
        key = "ramp_up" if samples < batch else "global_batch_tokens"
        problem = f"{samples * length:,} tokens are {count} microbatches per step and rank, but"
        problem = f"{problem} {schedule} on {pipeline} pipeline ranks needs {need}"
        raise RecipeError(f"budget.{key}", problem, fix)
