"""torchtitan 0.2.2 (github.com/pytorch/torchtitan, tag v0.2.2): a TOML file, and a module.

Its TOML has the sections of ``JobConfig`` (torchtitan/config/job_config.py). Sizes of a model,
first weights and schedules are code there, so the module adds one model: its Llama 3 with the
recipe's sizes, first weights and rates.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from components.config.schema.sections import Parallelism
from components.config.schema.types import thaw
from components.convert.family import choose_family
from components.convert.features import Features, read_features
from components.convert.llama import Llama

VERSION = "0.2.2"
NOTES = (
    "data: torchtitan streams a data set that it knows by name and cuts it as it reads; name "
    "it in [training] dataset. The recipe's order, shares and held-out text are not said",
    "guard, watchdog, evaluation, profiler and tracking are not said: torchtitan has its own",
)
NO_TOKENIZER = "put the run's tokenizer.json into the folder tokenizer: the recipe names none"
SCHEDULES = {"Cosine": "cosine", "WarmupStableDecay": "wsd"}
AS_IS = "a model with what torchtitan's Llama 3 lacks can only be trained here"
DTYPES = frozenset({"bfloat16", "float32"})
SAID = frozenset({"model.initialization.cutoff"})
Sections = dict[str, dict[str, Any]]


def write(recipe: Recipe, asked: str) -> TrainerFiles:
    """Say the recipe.

    Raises:
        RecipeError: something of it cannot be said; with all of that.
    """
    features = read_features(thaw(recipe.model))
    refuse(f"torchtitan {VERSION}", _unsaid(recipe, features))
    choose_family(features)  # refuses parts that are newer than this page and not Llama's
    module = f"recipe_{recipe.name}"
    start = "PYTHONPATH=. torchrun --nproc_per_node=N -m torchtitan.train --job.config_file {}"
    return TrainerFiles(
        files={
            f"{recipe.name}.toml": _toml(asked, _sections(recipe, module)),
            f"{module}.py": _module(recipe, features),
        },
        start=start.format(f"{recipe.name}.toml"),
        notes=NOTES if recipe.data.tokenizer_folder != "none" else (*NOTES, NO_TOKENIZER),
    )


def _unsaid(recipe: Recipe, m: Features) -> Iterator[UnsaidKey]:
    yield from unmet(Llama.needs, m, AS_IS)
    yield from unsaid_parts(m, AS_IS)
    yield from unsaid_noise(m)
    adam, scaling = recipe.optimizer, m.positions.scaling
    decayed = adam.get("decay", "all") == "all" or not adam["weight_decay"]
    scaled = scaling is None or scaling.kind == "Llama3Scaling"
    masked = "it finds documents by its own end of text"
    yield from unsaid([
        ("model.positions.scaling", scaled, "it slows rotations as Llama 3 does", AS_IS),
        ("model.tied_embeddings", not m.tied_embeddings, "it ties nothing", "=false"),
        ("optimizer.decay", decayed, "it decays norms, too", "=all"),
        ("data.document_mask", not recipe.data.document_mask, masked, "=false"),
    ])
    yield from unsaid_by_all(recipe, SAID, SCHEDULES, DTYPES)
    yield from _unsaid_layout(recipe.parallelism)


def _unsaid_layout(p: Parallelism) -> Iterator[UnsaidKey]:
    copies, alone = p.zero == 0 and p.data > 1, p.tensor == p.context == 1
    collects = p.gc_every_steps != "never"
    return unsaid([
        ("parallelism.zero", p.zero != 1 or p.data == 1, "FSDP shards gradients, too", "=2"),
        (
            "parallelism.zero",
            not copies or alone,
            "whole copies go with no other axis there",
            "=2",
        ),
        ("parallelism.pipeline", p.pipeline == 1, "stages are not written", "=1"),
        ("parallelism.expert", p.expert == 1, "its Llama has no experts", "=1"),
        (
            "parallelism.sequence_parallel",
            p.tensor == 1 or p.sequence_parallel,
            "it always is",
            "=true",
        ),
        (
            "parallelism.recompute",
            isinstance(p.recompute, str),
            "parts are not named there",
            "=selective",
        ),
        ("parallelism.gc_every_steps", collects, "it collects itself", "=50"),
    ])


def _sections(recipe: Recipe, module: str) -> Sections:
    """Name every key that the recipe decides, in the sections of ``JobConfig``."""
    adam, budget, degrees = recipe.optimizer, recipe.budget, recipe.parallelism
    samples = budget.global_batch_tokens // budget.sequence_length
    return {
        "job": {"description": recipe.why, "dump_folder": "outputs"},
        "experimental": {"custom_import": module},
        "model": {
            "name": recipe.name,
            "flavor": recipe.name,
            "hf_assets_path": tokenizer_path(recipe),
        },
        "optimizer": {
            "name": "AdamW",
            **{key: adam[key] for key in ("lr", "beta1", "beta2", "eps", "weight_decay")},
        },
        "training": {
            "seq_len": budget.sequence_length,
            "local_batch_size": degrees.microbatch_sequences,
            "global_batch_size": samples,
            "steps": recipe.derived.steps,
            "max_norm": adam["clip_norm"],
            "dtype": "float32",
            "mixed_precision_param": recipe.precision.compute,
            "mixed_precision_reduce": "float32",
            "gc_freq": degrees.gc_every_steps,
        },
        "parallelism": _degrees(degrees),
        "activation_checkpoint": _recomputed(degrees),
        "compile": {"enable": degrees.compile != "none", "components": ["model"]},
        "checkpoint": {
            "enable": True,
            "interval": max(1, recipe.checkpoint.every_tokens // budget.global_batch_tokens),
        },
        "debug": {"seed": budget.seed},
    }


def _degrees(p: Parallelism) -> dict[str, Any]:
    """ZeRO 0 keeps a copy a rank; 2 keeps gathered weights for the backward pass, 3 not."""
    shard = p.data_shard if p.zero else 1
    return {
        "data_parallel_replicate_degree": p.data // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if p.zero == 3 else "never",
        "tensor_parallel_degree": p.tensor,
        "context_parallel_degree": p.context,
    }


def _recomputed(p: Parallelism) -> dict[str, Any]:
    every = {"selective_ac_option": str(p.recompute_every)}
    match p.recompute:
        case "full" if p.recompute_every > 1:
            return {"mode": "selective"} | every
        case "selective":
            return {"mode": "selective", "selective_ac_option": "op"}
        case mode:
            return {"mode": mode}


def _toml(asked: str, sections: Sections) -> str:
    words = " ".join(asked.split())  # a comment is one line
    lines = [f"# Written for torchtitan {VERSION} by `python run.py {words}`."]
    for name, keys in sections.items():
        lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in keys.items())]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    """TOML writes words, lists and truth as JSON does, and digits as Python."""
    return repr(value) if type(value) is float else json.dumps(value, ensure_ascii=False)


def _module(recipe: Recipe, features: Features) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Python, no page; names are of letters, the rest are numbers
    )
    first = features.initialization
    layers = 2 * features.num_layers if first["residual"] == "scaled" else 1
    return environment.get_template("torchtitan.py.j2").render(
        version=VERSION,
        name=recipe.name,
        m=features,
        scaling=features.positions.scaling,
        # Its width is multiple_of x ceil(int(multiplier x int(8 dim / 3)) / multiple_of).
        multiplier=features.mlp.ffn_dim / (16 * features.dim / 3),
        length=recipe.budget.sequence_length,
        std=first["std"],
        residual_std=first["std"] / layers**0.5,
        cutoff=first.get("cutoff"),
        kind=SCHEDULES[kind_of(recipe.schedule["_target_"])],
        rates=recipe.schedule,
        step_tokens=recipe.budget.global_batch_tokens,
    )
