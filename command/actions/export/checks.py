"""Check that torchtitan can train a recipe, and report all keys that it cannot.

Each key is exported, checked here, or has no effect on the trained model. A key that is in
none of the tables below is newer than this export and is refused, not dropped silently.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from components.config.recipe import Recipe
from components.config.recipe_text import inline_yaml
from components.config.user_overrides import iterate_leaves
from components.errors import RecipeError

VERSION = "0.2.2"
_ABSENT = object()


def _join(table: Mapping[str, str]) -> frozenset[str]:
    return frozenset(prefix + key for prefix, keys in table.items() for key in keys.split())


# Keys for names, machines, monitoring, data preparation, and number storage and transfer.
# torchtitan handles these itself, and they do not change what is trained.
OWN = _join({
    "": "name description reference_cluster citations published assumed scale cluster "
    "evaluation guard watchdog",
    "checkpoint.": "keep keep_every_tokens keep_best weights_every_tokens copy_to asynchronous "
    "files retry_seconds local",
    "data.": "sources preparation folder held_out_fraction on_exhausted tokenizer_sample_bytes "
    "verify write_megatron",
    "model.": "attention.backends mlp.path attention.layer_scaling",
    "parallelism.": "bucket_elements overlap rank_order expert_aware expert_capacity_factor "
    "expert_dispatch expert_overlap",
    "precision.": "weights",
}) | {"profiler", "tracking", "tokenizer", "trainer", "logger"}
# Keys that are exported, named in a note, or part of a class that is refused. `SUPPORTED` lists
# the keys that are checked one by one.
READ = _join({
    "budget.": "total_tokens global_batch_tokens sequence_length seed",
    "checkpoint.": "every_tokens",
    "data.": "mixture phases shares tokenizer_folder",
    "model.": "_target_ dim embedding_norm embedding_scale logit_cap mixers norm_placement "
    "num_dense_layers num_layers padded_vocab_size vocab_size",
    "model.attention.": "_target_ key_value_rank latent_norm num_heads num_kv_heads qk_norm "
    "qk_norm_over query_rank rotary_dim scale_dim value_dim windows",
    "model.initialization.": "_target_ cutoff",
    "model.mlp.": "_target_ auxiliary_loss auxiliary_scope ffn_dim gated num_experts "
    "num_groups renormalize routing scores shared_ffn_dim top_groups top_k weight_scale z_loss",
    "model.norm.": "_target_ bias center eps weight",
    "model.positions.": "_target_ base num_positions skip_every",
    "optimizer.": "alpha alpha_warmup_tokens beta1 beta2 beta3 beta3_warmup_tokens "
    "clip_norm embedding_lr_factor eps head_lr_factor lr matrix_lr_factor momentum "
    "momentum_start momentum_warmup_tokens nesterov newton_schulz_steps update_scale "
    "weight_decay",
    "parallelism.": "compile context data data_shard deepspeed expert_grad_average "
    "microbatch_sequences recompute_every schedule stage_balance stages_per_rank tensor",
    "precision.": "loss_scale",
    "schedule.": "decay_tokens end phases start total_tokens value warmup_from warmup_tokens",
})
AS_IS = "train this model here: torchtitan's Llama 3 has no such part"
Allowed = tuple[Any, ...]


def _list_head_dims(r: Recipe) -> Allowed:
    width = r.decoder_spec.dim / r.decoder_spec.attention.num_heads
    return (int(width) if width.is_integer() else width,)


def _list_splits(r: Recipe) -> Allowed:
    return (True,) if r.parallelism.tensor > 1 else (True, False)


def _list_stds(r: Recipe) -> Allowed:
    return None, r.decoder_spec.initialization.std


def _list_zero(r: Recipe) -> Allowed:
    """Return the ZeRO stages that match FSDP; stage 0 combines with no other axis."""
    p = r.parallelism
    alone = (0,) if p.data == 1 or p.tensor == p.context == 1 else ()
    return 2, 3, *alone, *((1,) if p.data == 1 else ())


def _list_intervals(r: Recipe) -> Allowed:
    interval = r.parallelism.gc_every_steps
    return (50 if interval == "never" else interval,)


def _list_decays(r: Recipe) -> Allowed:
    return ("all",) if r.optimizer["weight_decay"] else ("all", "matrices")


# The values that torchtitan can train for each key. The first is the proposed fix.
SUPPORTED: Mapping[str, Allowed | Callable[[Recipe], Allowed]] = {
    "model.attention.bias": (False,),
    "model.attention.dropout": (0.0,),
    "model.attention.head_dim": _list_head_dims,
    "model.attention.output_gate": (False,),
    "model.attention.sinks": (False,),
    "model.dense_mlp": (None,),
    "model.dropout": (0.0,),
    "model.init_from": ("none",),
    "model.initialization.embedding_std": _list_stds,
    "model.initialization.head_std": _list_stds,
    "model.initialization.padding_row": (None,),
    "model.initialization.residual": ("plain", "scaled"),
    "model.initialization.std": lambda r: (r.decoder_spec.initialization.initializer_range,),
    "model.mlp.activation": ("silu",),
    "model.mlp.bias": (False,),
    "model.mlp.linear_offset": (0.0,),
    "model.mlp.shared_gate": (False,),
    "model.mlp.swiglu_alpha": (1.0,),
    "model.mlp.swiglu_limit": (None,),
    "model.mtp": (None,),
    "model.parametrization": (None,),
    "model.pattern": (None,),
    "model.positions.rotary_fraction": (1.0,),
    "model.positions.scaling": (None, "Llama3Scaling"),
    "model.tied_embeddings": (False,),
    "model.z_loss": (0.0,),
    "optimizer._target_": ("AdamW",),
    "optimizer.clip_after_tokens": (0, None),
    "optimizer.decay": _list_decays,
    "optimizer.decay_order": ("before",),
    "schedule._target_": ("Cosine", "WarmupStableDecay"),
    "schedule.decay_shape": ("linear", "1-sqrt", "cosine"),
    "schedule.planned_tokens": (None, 0),
    "schedule.skipped_tokens": (0, None),
    "budget.ramp_up": ("none",),
    "precision.accumulate": ("float32",),
    "precision.compute": ("bfloat16", "float32"),
    "precision.master": ("auto", "float32"),
    "precision.reduce": ("float32",),
    "data.document_mask": (False,),
    "data.goldfish": ("none",),
    "data.loss_after_eod": (True,),
    "data.packing": ("concatenate",),
    "data.skip": ([],),
    "phases": ({},),
    "from": (None,),
    "parallelism.engine": ("mesh",),
    "parallelism.expert": (1,),
    "parallelism.gc_every_steps": _list_intervals,
    "parallelism.offload_optimizer": (False,),
    "parallelism.pipeline": (1,),
    "parallelism.recompute": ("selective", "none", "full"),
    "parallelism.sequence_parallel": _list_splits,
    "parallelism.zero": _list_zero,
}


def check_recipe(recipe: Recipe) -> None:
    """Check every key and raise one RecipeError for all that torchtitan cannot train."""
    from components.convert.llama import LLAMA  # imports torch

    tree = recipe.model_dump(mode="json")
    unmet = (row for row in LLAMA.all_requirements() if not row.is_met(recipe.decoder_spec))
    failed = [
        (f"model.{row.path}", row.describe_rule(recipe.decoder_spec), AS_IS) for row in unmet
    ]
    failed += [
        (key, "this export does not know this key", "remove the key")
        for key in unknown_keys(tree)
    ]
    for key, allowed in SUPPORTED.items():
        values = allowed(recipe) if callable(allowed) else allowed
        here = _read(tree, key)
        if here is not _ABSENT and here not in values:
            value_text, *choices = map(inline_yaml, (here, *values))
            key = key.removesuffix("._target_")
            fix = choices[0].lower() if key in {"optimizer", "schedule"} else choices[0]
            problem = f"torchtitan supports {' or '.join(choices)}, not {value_text}"
            failed.append((key, problem, f"set {key}={fix}"))
    if failed:
        problem = f"torchtitan {VERSION} cannot train this recipe"
        problem += "".join(f"\n  {key}: {reason}" for key, reason, _ in failed)
        raise RecipeError(failed[0][0], problem, "; ".join({fix: 0 for *_, fix in failed}))


def _read(tree: Mapping[str, Any], key: str) -> Any:
    """Return the value at a key. A node with ``_target_`` returns its class name."""
    value: Any = tree
    for step in key.split("."):
        value = value.get(step, _ABSENT) if isinstance(value, Mapping) else _ABSENT
    if isinstance(value, Mapping) and "_target_" in value:
        return class_of(value)
    return class_of({"_target_": value}) if key.endswith("_target_") else value


def unknown_keys(tree: Mapping[str, Any]) -> Iterator[str]:
    """List the recipe's keys that are in no table."""
    known = OWN | READ | SUPPORTED.keys()
    for path, _ in iterate_leaves(tree):
        steps = path.split(".")
        above = {".".join(steps[: end + 1]) for end in range(len(steps))}
        if not above & known and steps[-1] != "_partial_":
            yield path


def class_of(node: Mapping[str, Any]) -> str:
    """Return the class that a node's ``_target_`` names."""
    return str(node["_target_"]).rpartition(".")[2]
