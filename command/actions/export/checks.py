"""Refuse a recipe that torchtitan cannot train, naming every key at once.

Every key of a recipe is written, checked here, or has no effect on the trained model. A key
that is none of these is newer than the two tables below; it is refused, not silently dropped.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from components.config.model_spec.decoder import DecoderSpec
from components.config.recipe import Recipe
from components.config.schema.sections import Parallelism
from components.config.user_overrides import leaves
from components.errors import RecipeError

VERSION = "0.2.2"
# A key, whether torchtitan can train its value, why not, and a fix ("=x" sets the key to x).
Check = tuple[str, bool, str, str]


def _join(table: Mapping[str, str]) -> frozenset[str]:
    return frozenset(prefix + key for prefix, keys in table.items() for key in keys.split())


# Names, machines and monitoring; how data are prepared; how the same numbers are stored and
# sent: torchtitan has its own ways, which do not change what is trained.
OWN = _join({
    "": "name why home works published assumed scale cluster evaluation guard watchdog",
    "checkpoint.": "keep keep_every_tokens keep_best weights_every_tokens copy_to asynchronous "
    "files retry_seconds local",
    "data.": "sources preparation folder held_out_fraction surplus tokenizer_sample_bytes "
    "verify write_megatron",
    "model.": "attention.backends mlp.path attention.layer_scaling",
    "parallelism.": "bucket_elements overlap rank_order expert_aware expert_bound "
    "expert_dispatch expert_overlap",
    "precision.": "weights",
}) | {"profiler", "tracking", "tokenizer", "trainer", "logger"}
# Written, checked, named in a note, or part of a class that is refused.
READ = _join({
    "": "from phases",
    "budget.": "total_tokens global_batch_tokens sequence_length seed ramp_up",
    "checkpoint.": "every_tokens",
    "data.": "document_mask goldfish loss_after_eod mixture packing phases shares skip "
    "tokenizer_folder",
    "model.": "_target_ dense_mlp dim dropout embedding_norm embedding_scale init_from "
    "logit_cap mtp norm_placement num_dense_layers num_layers padded_vocab_size "
    "parametrization tied_embeddings vocab_size z_loss",
    "model.attention.": "_target_ bias dropout head_dim key_value_rank latent_norm num_heads "
    "num_kv_heads qk_norm qk_norm_over query_rank rotary_dim scale_dim value_dim windows",
    "model.initialization.": "_target_ cutoff embedding_std head_std padding_row residual std",
    "model.mlp.": "_target_ activation auxiliary_loss auxiliary_scope bias ffn_dim gated "
    "num_experts num_groups renormalize routing scores shared_ffn_dim top_groups top_k "
    "weight_scale z_loss",
    "model.norm.": "_target_ bias center eps weight",
    "model.positions.": "_target_ base num_positions scaling skip_every",
    "optimizer.": "_target_ alpha alpha_warmup_tokens beta1 beta2 beta3 beta3_warmup_tokens "
    "clip_after_tokens clip_norm decay decay_order embedding_lr_factor eps head_lr_factor lr "
    "matrix_lr_factor momentum momentum_start momentum_warmup_tokens nesterov "
    "newton_schulz_steps update_scale weight_decay",
    "parallelism.": "compile context data data_shard deepspeed engine expert "
    "expert_divisor gc_every_steps microbatch_sequences offload_optimizer pipeline "
    "recompute recompute_every schedule sequence_parallel stage_balance stages_per_rank "
    "tensor zero",
    "precision.": "accumulate compute loss_scale master reduce",
    "schedule.": "_target_ decay_shape decay_tokens end phases planned_tokens skipped_tokens "
    "start total_tokens value warmup_from warmup_tokens",
})
# Classes whose keys are checked one by one.
AS_IS = "a model with what torchtitan's Llama 3 lacks can only be trained here"
ONE_STD = "all maps begin with one deviation"


def check_recipe(recipe: Recipe, features: DecoderSpec) -> None:
    """Raise a RecipeError that lists every key that torchtitan cannot train."""
    checks = [
        *_check_model(features),
        *_check_initialization(recipe),
        *(
            (key, False, "it is newer than what this export knows", "leave it out")
            for key in unknown_keys(recipe.model_dump(mode="json"))
        ),
        *_check_training(recipe),
        *_check_targets(recipe),
        *_check_layout(recipe.parallelism),
    ]
    failed = [(key, problem, fix) for key, holds, problem, fix in checks if not holds]
    if not failed:
        return
    problem = f"torchtitan {VERSION} cannot say this recipe"
    problem += "".join(f"\n  {key}: {reason}" for key, reason, _ in failed)
    fixes = (f"set {key}{fix}" if fix.startswith("=") else fix for key, _, fix in failed)
    raise RecipeError(failed[0][0], problem, "; ".join(dict.fromkeys(fixes)))


def unknown_keys(tree: Mapping[str, Any]) -> Iterator[str]:
    """List the recipe's keys that neither table has."""
    for path, _ in leaves(tree):
        steps = path.split(".")
        above = {".".join(steps[: end + 1]) for end in range(len(steps))}
        if not above & (OWN | READ) and steps[-1] != "_partial_":
            yield path


def class_of(node: Mapping[str, Any]) -> str:
    """Return the class that a node's ``_target_`` names."""
    return str(node["_target_"]).rpartition(".")[2]


def _check_model(m: DecoderSpec) -> Iterator[Check]:
    """Compare with torchtitan's Llama 3."""
    from components.convert.llama import LLAMA  # imports torch

    for row in LLAMA.all_requirements():
        yield f"model.{row.path}", row.is_met(m), row.describe(m), AS_IS
    heads = m.attention.num_heads * m.attention.head_dim == m.dim
    divided = "set model.attention.head_dim to model.dim / num_heads"
    scaled = m.positions.scaling is None or m.positions.scaling.kind == "Llama3Scaling"
    yield from (
        ("model.attention.bias", not m.attention.bias, "its maps have none", AS_IS),
        ("model.mlp.bias", not m.mlp.bias, "its maps have none", AS_IS),
        ("model.mlp.activation", m.mlp.activation == "silu", "it has silu", AS_IS),
        ("model.attention.head_dim", heads, "its heads divide the width", divided),
        ("model.dropout", not m.dropout, "it has none", "=0.0"),
        ("model.attention.dropout", not m.attention.dropout, "it has none", "=0.0"),
        ("model.positions.scaling", scaled, "it slows rotations as Llama 3 does", AS_IS),
        ("model.tied_embeddings", not m.tied_embeddings, "it ties nothing", "=false"),
    )


def _check_initialization(recipe: Recipe) -> Iterator[Check]:
    first, prefix = recipe.shape.initialization, "model.initialization"
    row = first.padding_row is None
    yield f"{prefix}.padding_row", row, "no row begins at 0", "=null"
    for key in ("embedding_std", "head_std"):
        yield f"{prefix}.{key}", getattr(first, key) in {None, first.std}, ONE_STD, "=null"
    yield f"{prefix}.std", first.std != "fan_in", ONE_STD, "=0.02"
    yield f"{prefix}.residual", first.residual != "zero", "none is 0", "=plain"


def _check_training(recipe: Recipe) -> Iterator[Check]:
    adam, rates, precision = recipe.optimizer, recipe.schedule, recipe.precision
    name, schedule = class_of(adam), class_of(rates)
    known = schedule in {"Cosine", "WarmupStableDecay"}
    decayed = adam.get("decay", "all") == "all" or not adam["weight_decay"]
    before, late = adam.get("decay_order") != "after", adam.get("clip_after_tokens")
    shaped = rates.get("decay_shape", "linear") != "exponential"
    constant = isinstance(recipe.budget.ramp_up, str)
    dtype = precision.compute in {"bfloat16", "float32"}
    other = f"it has bfloat16 and float32, not {precision.compute}"
    summed = precision.reduce == precision.accumulate == "float32"
    sums = "set precision.reduce=float32 precision.accumulate=float32"
    master = precision.master in {"auto", "float32"}
    fresh = recipe.shape.init_from == "none"
    by_hand = "=none, and name them there by hand"
    yield from (
        ("optimizer", name == "AdamW", f"it has AdamW, not {name}", "=adamw"),
        ("optimizer.decay", decayed, "it decays norms, too", "=all"),
        ("optimizer.decay_order", before, "it decays before the update", "=before"),
        ("optimizer.clip_after_tokens", not late, "it clips from the first step on", "=0"),
        ("schedule", known, f"{schedule} is not written", "=cosine"),
        ("schedule.decay_shape", shaped, "it is not written", "=linear"),
        ("budget.ramp_up", constant, "its batch is constant", "=none"),
        ("precision.compute", dtype, other, "=bfloat16"),
        ("precision.reduce", summed, "it adds gradients in float32", sums),
        ("precision.master", master, "it updates weights in float32", "=auto"),
        ("model.init_from", fresh, "weights to begin with are not written", by_hand),
    )


def _check_targets(recipe: Recipe) -> Iterator[Check]:
    """Check which tokens a step predicts, and that the run never changes."""
    data, rates, model = recipe.data, recipe.schedule, recipe.shape
    plain, joined = data.goldfish == "none", data.packing == "concatenate"
    masked = "it finds documents by its own end of text"
    alone = recipe.start is None
    other = "it begins with first weights, not with another run's"
    export = "export the parent, and name its weights there by hand"
    next_token, one_rate = model.mtp is None, model.parametrization is None
    yield from (
        ("data.document_mask", not data.document_mask, masked, "=false"),
        ("data.goldfish", plain, "all targets count", "=none"),
        ("data.loss_after_eod", data.loss_after_eod, "all targets count", "=true"),
        ("data.packing", joined, "it cuts one long text", "=concatenate"),
        ("data.skip", not data.skip, "it leaves no sample out", "=[]"),
        ("schedule.planned_tokens", not rates.get("planned_tokens"), "not written", "=null"),
        ("schedule.skipped_tokens", not rates.get("skipped_tokens"), "not written", "=0"),
        ("model.z_loss", not model.z_loss, "it has cross-entropy alone", "=0.0"),
        ("model.dense_mlp", model.dense_mlp is None, "all its layers are alike", "=null"),
        ("model.mtp", next_token, "it predicts the next token", "=null"),
        ("model.parametrization", one_rate, "all widths have one rate", "=null"),
        ("phases", not recipe.phases, "a run is the same from its begin to its end", "={}"),
        ("from", alone, other, export),
    )


def _check_layout(p: Parallelism) -> Iterator[Check]:
    shards = p.zero != 1 or p.data == 1
    alone = p.zero != 0 or p.data == 1 or p.tensor == p.context == 1
    copies = "whole copies go with no other axis there"
    split = p.tensor == 1 or p.sequence_parallel
    whole = isinstance(p.recompute, str)
    collects = p.gc_every_steps != "never"
    offloads = p.offload_optimizer
    yield from (
        ("parallelism.engine", p.engine == "mesh", "it is an engine itself", "=mesh"),
        ("parallelism.offload_optimizer", not offloads, "it offloads weights, too", "=false"),
        ("parallelism.zero", shards, "FSDP shards gradients, too", "=2"),
        ("parallelism.zero", alone, copies, "=2"),
        ("parallelism.pipeline", p.pipeline == 1, "stages are not written", "=1"),
        ("parallelism.expert", p.expert == 1, "its Llama has no experts", "=1"),
        ("parallelism.sequence_parallel", split, "it always is", "=true"),
        ("parallelism.recompute", whole, "parts are not named there", "=selective"),
        ("parallelism.gc_every_steps", collects, "it collects itself", "=50"),
    )
