"""nanotron (github.com/huggingface/nanotron, commit 2411b022): one YAML file.

Its sections are the dataclasses of ``src/nanotron/config``; the model is its ``Qwen2Config``,
which is Llama's decoder with layers without rotation and masks at the ends of documents.
"""

from collections.abc import Iterator
from typing import Any

import yaml

from command.actions.emit import TrainerFiles, UnsaidKey, refuse
from command.actions.emit.checks import (
    kind_of,
    tokenizer_path,
    unmet,
    unsaid,
    unsaid_by_all,
    unsaid_noise,
    unsaid_parts,
)
from components.config.schema.recipe import Recipe
from components.config.schema.types import thaw
from components.convert import family
from components.convert.family import Need
from components.convert.features import Features, read_features

COMMIT = "2411b022"
AS_IS = "a model with what nanotron's Qwen2 lacks can only be trained here"
NOTES = (
    "data: nanotron reads token files of datatrove, with the shares of the recipe in its own "
    "order; put those of each source into tokens/SOURCE. Held-out text is not said",
    "tokenizer: the name in the token files' metadata must be that of the configuration",
    "guard, watchdog, evaluation, profiler and tracking are not said: nanotron has its own; it "
    "keeps every checkpoint, and cuts stages by its own count of their work",
)
NEEDS = (
    Need(
        "positions",
        "it has rotary positions",
        lambda m: m.positions.kind in {"Rotary", "InterleavedRotary"},
    ),
    family.RMS_NORM,
    Need("mlp.gated", "its MLP is gated", lambda m: m.mlp.gated),
    family.NO_EXPERTS,
    family.NO_QK_NORM,
    family.NORM_BEFORE,
    family.NO_WINDOWS,
    family.PLAIN_ATTENTION,
    family.NO_EMBEDDING_NORM,
    family.NO_CAP,
    Need("positions.scaling", "it slows no rotation", lambda m: m.positions.scaling is None),
    Need("positions.local_base", "it has one base", lambda m: m.positions.local_base is None),
    Need(
        "positions.skip_every",
        "layers without rotation divide the layers",
        lambda m: m.num_layers % (m.positions.skip_every or 1) == 0,
    ),
)
SCHEDULES = ("Cosine", "WarmupStableDecay")
ENGINES = {"1f1b": "1f1b", "gpipe": "afab"}
SCALED = {"scaled": "NUM_LAYERS", "plain": "NONE"}


def write(recipe: Recipe, asked: str) -> TrainerFiles:
    """Say the recipe.

    Raises:
        RecipeError: something of it cannot be said; with all of that.
    """
    features = read_features(thaw(recipe.model))
    refuse(f"nanotron {COMMIT}", _unsaid(recipe, features))
    words = " ".join(asked.split())  # a comment is one line
    head = f"# Written for nanotron {COMMIT} by `python run.py {words}`.\n"
    text = yaml.safe_dump(_config(recipe, features), allow_unicode=True, width=96)
    file = f"{recipe.name}.yaml"
    start = f"torchrun --nproc_per_node=N NANOTRON/run_train.py --config-file {file}"
    return TrainerFiles({file: head + text}, start, NOTES)


def _unsaid(recipe: Recipe, m: Features) -> Iterator[UnsaidKey]:
    yield from unmet(NEEDS, m, AS_IS)
    yield from unsaid_parts(m, AS_IS)
    yield from unsaid_noise(m)
    yield from unsaid_by_all(recipe, frozenset(), SCHEDULES, frozenset({"bfloat16"}))
    yield from _unsaid_training(recipe, m)
    yield from _unsaid_layout(recipe)


def _unsaid_training(recipe: Recipe, m: Features) -> Iterator[UnsaidKey]:
    """Compare with lr_scheduler_builder and the parameter groups of nanotron/helpers.py."""
    adam, rates, step = recipe.optimizer, recipe.schedule, recipe.budget.global_batch_tokens
    plain = kind_of(rates["_target_"]) in SCHEDULES
    # Its patterns of undecayed parameters also catch whatever follows a tied one unless that
    # is tied, too, as norms over tensor ranks are: so the embedding alone, and where it is.
    everything = adam.get("decay", "all") == "all" or not adam["weight_decay"]
    embedding = adam.get("decay") == "all_but_embedding"
    tied = m.tied_embeddings and recipe.parallelism.tensor > 1
    peak = not plain or rates["start"] == 1
    from_nothing = not plain or not rates["warmup_tokens"] or rates["warmup_from"] == 0
    begun = "set the tokens of its phases to whole steps"
    starts = all(first % recipe.derived.samples_per_step == 0 for first, *_ in _stages(recipe))
    yield from unsaid([
        ("optimizer.decay", everything or (embedding and tied), "it decays norms, too", "=all"),
        ("schedule.start", peak, "its peak is the rate", "=1.0"),
        ("schedule.warmup_from", from_nothing, "it warms up from 0", "=0.0"),
        ("data.mixture", recipe.data.mixture == "given", "it has shares", "=given"),
        ("data.phases", starts, "they begin with a step", begun),
    ])
    for part in ("total", "warmup", "decay"):
        key, tokens = f"schedule.{part}_tokens", rates.get(f"{part}_tokens", 0)
        near = f"={max(1, round(tokens / step)) * step}"
        yield from unsaid([(key, tokens % step == 0, "it counts whole steps", near)])


def _unsaid_layout(recipe: Recipe) -> Iterator[UnsaidKey]:
    p = recipe.parallelism
    heads = recipe.shape.attention.num_kv_heads >= p.tensor
    all_ranks = p.zero == 0 or p.data_shard == p.data
    yield from unsaid([
        ("parallelism.zero", p.zero < 2, "it shards the optimizer alone", "=1"),
        ("parallelism.expert", p.expert == 1, "its layers have none", "=1"),
        ("parallelism.data_shard", all_ranks, "it shards over all of them", "=auto"),
        ("parallelism.tensor", heads, "a rank has a head of keys", "=1"),
        ("parallelism.schedule", p.schedule in ENGINES, "it is not written", "=1f1b"),
        ("parallelism.stages_per_rank", p.stages_per_rank == 1, "it has one", "=1"),
        (
            "parallelism.recompute",
            p.recompute in {"none", "full"},
            "it recomputes whole layers",
            "=full",
        ),
        (
            "parallelism.recompute_every",
            p.recompute == "none" or p.recompute_every == 1,
            "it recomputes all layers",
            "=1",
        ),
        ("parallelism.compile", p.compile == "none", "it does not compile", "=none"),
    ])


def _stages(recipe: Recipe) -> list[tuple[int, str, dict[str, float]]]:
    """List the first sample, the name and the shares of each mixture."""
    return [
        (first, "first" if path == "data.shares" else path.split(".")[2], dict(shares))
        for first, path, shares in recipe.data_phases
    ]


def _config(recipe: Recipe, m: Features) -> dict[str, Any]:
    budget, p, data = recipe.budget, recipe.parallelism, recipe.data
    tokenizer = tokenizer_path(recipe)
    interval = max(1, recipe.checkpoint.every_tokens // budget.global_batch_tokens)
    return {
        "general": {"project": recipe.name, "run": recipe.name, "seed": budget.seed},
        "checkpoints": {"checkpoints_path": "checkpoints", "checkpoint_interval": interval},
        "parallelism": {
            "dp": p.data,
            "pp": p.pipeline,
            "tp": p.tensor,
            "context_parallel_size": p.context,
            "expert_parallel_size": 1,
            "pp_engine": ENGINES[p.schedule],
            "tp_mode": "REDUCE_SCATTER" if p.sequence_parallel else "ALL_REDUCE",
            "tp_linear_async_communication": p.sequence_parallel and p.overlap,
            "recompute_layer": p.recompute == "full",
        },
        "model": _model(recipe, m),
        "tokenizer": {"tokenizer_name_or_path": tokenizer},
        "tokens": {
            "sequence_length": budget.sequence_length,
            "train_steps": recipe.derived.steps,
            "micro_batch_size": p.microbatch_sequences,
            "batch_accumulation_per_replica": recipe.derived.microbatches_per_step,
        },
        "optimizer": _optimizer(recipe),
        "data_stages": [
            {
                "name": name,
                "start_training_step": first // recipe.derived.samples_per_step + 1,
                "data": {
                    "seed": budget.seed,
                    "dataset": {
                        "dataset_folder": [f"tokens/{source}" for source in shares],
                        "dataset_weights": list(shares.values()),
                        "tokenizer_name": tokenizer,
                        "vocab_size": m.padded_vocab_size,
                        "token_size_in_bytes": 2 if m.vocab_size <= 1 << 16 else 4,
                        "return_positions": data.document_mask,
                    },
                },
            }
            for first, name, shares in _stages(recipe)
        ],
    }


def _model(recipe: Recipe, m: Features) -> dict[str, Any]:
    first, ring = m.initialization, recipe.parallelism.context > 1
    attention = "llama3_ring_attention" if ring else "flash_attention_2"
    config = {
        "is_qwen2_config": True,
        "hidden_size": m.dim,
        "num_hidden_layers": m.num_layers,
        "num_attention_heads": m.attention.num_heads,
        "num_key_value_heads": m.attention.num_kv_heads,
        "intermediate_size": m.mlp.ffn_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": m.norm.eps,
        "rope_theta": m.positions.base,
        "rope_interleaved": False,
        "no_rope_layer": m.positions.skip_every,
        "tie_word_embeddings": m.tied_embeddings,
        "vocab_size": m.padded_vocab_size,
        "max_position_embeddings": recipe.budget.sequence_length,
        "initializer_range": first["std"],
        "pretraining_tp": recipe.parallelism.tensor,
        "_attn_implementation": attention,
        "_use_doc_masking": recipe.data.document_mask,
        "z_loss_enabled": False,
    }
    if ring:
        config["ring_attn_heads_k_stride"] = 1
    return {
        "dtype": "bfloat16",
        "init_method": {"std": first["std"], "scaling_method": SCALED[first["residual"]]},
        "make_vocab_size_divisible_by": 1,
        "model_config": config,
    }


def _optimizer(recipe: Recipe) -> dict[str, Any]:
    """Its counter is that of steps before this one, so a decay begins where ours does."""
    adam, rates, step = recipe.optimizer, recipe.schedule, recipe.budget.global_batch_tokens
    warmup = rates["warmup_tokens"] // step
    total = rates["total_tokens"] // step
    decay = rates["decay_tokens"] // step if "decay_tokens" in rates else total - warmup
    spared = adam.get("decay") == "all_but_embedding" and adam["weight_decay"]
    return {
        "optimizer_factory": {
            "name": "adamW",
            "adam_beta1": adam["beta1"],
            "adam_beta2": adam["beta2"],
            "adam_eps": adam["eps"],
            "torch_adam_is_fused": True,
        },
        "zero_stage": recipe.parallelism.zero,
        "weight_decay": adam["weight_decay"],
        "weight_decay_exclude_named_params": [".*token_embedding.*"] if spared else [],
        "clip_grad": adam["clip_norm"],
        "accumulate_grad_in_fp32": True,
        "learning_rate_scheduler": {
            "learning_rate": adam["lr"],
            "lr_warmup_steps": warmup,
            "lr_warmup_style": "linear",
            "lr_decay_style": rates.get("decay_shape", "cosine"),
            "lr_decay_starting_step": total - decay,
            "lr_decay_steps": decay,
            "min_decay_lr": adam["lr"] * rates["end"],
        },
    }
