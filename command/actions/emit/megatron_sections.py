"""What Megatron-Bridge is told: the sections of its ``ConfigContainer``, by field and value.

Fields that are not here keep their defaults; those whose defaults are not what a recipe says
are all here. Its learning rates run on the clock of samples.
"""

from typing import Any

from command.actions.emit.checks import tokenizer_path
from components.config.schema.recipe import Recipe
from components.convert.features import Features

Sections = dict[str, tuple[str, dict[str, Any]]]
SHAPES = {shape: shape for shape in ("linear", "cosine", "exponential")} | {
    "1-sqrt": "minus_sqrt"
}
NORMS = {"RMSNorm with weight": "RMSNorm", "LayerNorm with weight and bias": "LayerNorm"}


class RawName(str):
    """A name of the emitted file's own, which no recipe has a say in."""

    __slots__ = ()
    __repr__ = str.__str__


def sections(recipe: Recipe, m: Features) -> Sections:
    """Return the constructor of each section, and its arguments."""
    budget, p, every = recipe.budget, recipe.parallelism, recipe.checkpoint.every_tokens
    samples, length = recipe.derived.samples_per_step, budget.sequence_length
    interval = max(1, every // budget.global_batch_tokens)
    sums = recipe.precision.reduce == "float32"
    collects = p.gc_every_steps != "never"
    return {
        "model": ("GPTModelProvider", _model(recipe, m)),
        "train": (
            "bridge.TrainingConfig",
            {
                "micro_batch_size": p.microbatch_sequences,
                "global_batch_size": samples,
                "train_samples": recipe.derived.steps * samples,
                "manual_gc": collects,
                "manual_gc_interval": p.gc_every_steps if collects else 0,
            },
        ),
        "validation": ("bridge.ValidationConfig", {"eval_iters": 0}),
        **_optimizer(recipe),
        "ddp": (
            "bridge.DistributedDataParallelConfig",
            {
                "use_distributed_optimizer": p.zero == 1,
                "grad_reduce_in_fp32": sums,
                "overlap_grad_reduce": p.overlap,
                "overlap_param_gather": p.overlap and p.zero == 1,
            },
        ),
        "mixed_precision": (
            "MixedPrecisionConfig",
            {
                "bf16": True,
                "params_dtype": RawName("torch.bfloat16"),
                "pipeline_dtype": RawName("torch.bfloat16"),
                "grad_reduce_in_fp32": sums,
            },
        ),
        "dataset": ("bridge.GPTDatasetConfig", _data(recipe, length)),
        "tokenizer": (
            "TokenizerConfig",
            {
                "tokenizer_type": "HuggingFaceTokenizer",
                "tokenizer_model": tokenizer_path(recipe),
                "use_tokenizer_vocab_size": False,
            },
        ),
        "logger": ("bridge.LoggerConfig", {"log_interval": 1}),
        "checkpoint": (
            "bridge.CheckpointConfig",
            {"save": "checkpoints", "load": "checkpoints", "save_interval": interval},
        ),
        "rng": ("bridge.RNGConfig", {"seed": budget.seed}),
    }


def _model(recipe: Recipe, m: Features) -> dict[str, Any]:
    p, slow = recipe.parallelism, m.positions.scaling
    turns = p.stages_per_rank if p.stages_per_rank > 1 else None
    ends = p.stage_balance == "layers_and_ends" and p.pipeline > 1
    full = p.recompute == "full"
    return {
        "num_layers": m.num_layers,
        "hidden_size": m.dim,
        "ffn_hidden_size": m.mlp.ffn_dim,
        "num_attention_heads": m.attention.num_heads,
        "num_query_groups": m.attention.num_kv_heads,
        "kv_channels": m.attention.head_dim,
        "vocab_size": m.padded_vocab_size,
        "should_pad_vocab": False,
        "seq_length": recipe.budget.sequence_length,
        "share_embeddings_and_output_weights": m.tied_embeddings,
        "position_embedding_type": "rope",
        "rotary_base": int(m.positions.base or 0),
        "rope_scaling": slow is not None,
        "rope_scaling_factor": slow.factor if slow else 1.0,
        "no_rope_freq": m.positions.skip_every,
        "normalization": NORMS[m.norm.kind],
        "layernorm_epsilon": m.norm.eps,
        "qk_layernorm": m.attention.qk_norm is not None,
        "add_bias_linear": m.mlp.bias,
        "gated_linear_unit": True,
        "activation_func": RawName("F.silu"),
        "hidden_dropout": m.dropout,
        "attention_dropout": m.attention.dropout,
        "init_method_std": m.initialization["std"],
        "bf16": True,
        "params_dtype": RawName("torch.bfloat16"),
        "pipeline_dtype": RawName("torch.bfloat16"),
        "tensor_model_parallel_size": p.tensor,
        "sequence_parallel": p.sequence_parallel and p.tensor > 1,
        "context_parallel_size": p.context,
        "pipeline_model_parallel_size": p.pipeline,
        "virtual_pipeline_model_parallel_size": turns,
        "account_for_embedding_in_pipeline_split": ends,
        "account_for_loss_in_pipeline_split": ends,
        "recompute_granularity": "full" if full else None,
        "recompute_method": "uniform" if full else None,
        "recompute_num_layers": 1 if full else None,
    }


def _optimizer(recipe: Recipe) -> Sections:
    """Say rates in samples, which is the clock of its scheduler."""
    adam, rates, length = recipe.optimizer, recipe.schedule, recipe.budget.sequence_length
    decay = adam["weight_decay"]
    scheduler: dict[str, Any] = {
        "lr_decay_style": "cosine",
        "lr_warmup_samples": rates["warmup_tokens"] // length,
        "lr_warmup_init": adam["lr"] * rates["warmup_from"],
        "lr_decay_samples": (rates.get("planned_tokens") or rates["total_tokens"]) // length,
        "start_weight_decay": decay,
        "end_weight_decay": decay,
        "weight_decay_incr_style": "constant",
    }
    if "decay_tokens" in rates:
        scheduler |= {
            "lr_decay_style": "WSD",
            "lr_wsd_decay_style": SHAPES[rates["decay_shape"]],
            "lr_wsd_decay_samples": rates["decay_tokens"] // length,
        }
    optimizer = {
        "optimizer": "adam",
        "lr": adam["lr"],
        "min_lr": adam["lr"] * rates["end"],
        "adam_beta1": adam["beta1"],
        "adam_beta2": adam["beta2"],
        "adam_eps": adam["eps"],
        "weight_decay": decay,
        "clip_grad": adam["clip_norm"],
        "bf16": True,
        "params_dtype": RawName("torch.bfloat16"),
        "use_distributed_optimizer": recipe.parallelism.zero == 1,
        "overlap_param_gather": recipe.parallelism.overlap and recipe.parallelism.zero == 1,
    }
    return {
        "optimizer": ("bridge.OptimizerConfig", optimizer),
        "scheduler": ("bridge.SchedulerConfig", scheduler),
    }


def _data(recipe: Recipe, length: int) -> dict[str, Any]:
    """Blend Megatron's files, each by its prefix; several of a source have even weights."""
    prefixes: list[str] = []
    weights: list[float] = []
    for name, share in recipe.data.shares.items():
        files = recipe.data.sources[name].tokens if name in recipe.data.sources else ()
        for prefix in files or (f"tokens/{name}",):
            prefixes.append(prefix)
            weights.append(share / max(1, len(files)))
    return {
        "seq_length": length,
        "random_seed": recipe.budget.seed,
        "blend": (prefixes, weights),
        "split": "1,0,0",
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": not recipe.data.loss_after_eod,
        "dataloader_type": "single",
    }
