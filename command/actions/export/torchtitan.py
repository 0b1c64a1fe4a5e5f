"""Export a recipe as configuration of torchtitan 0.2.2: a TOML file and a Python module.

The TOML file has the sections of ``JobConfig`` (torchtitan/config/job_config.py at tag v0.2.2).
torchtitan defines model sizes, initial weights and schedules in code. The module therefore adds
one model: torchtitan's Llama 3 with the recipe's sizes, initial weights and learning rates.
"""

import json
from pathlib import Path
from typing import Any

from command.actions.export.checks import VERSION, check_recipe, class_of
from command.arguments import Arguments
from command.composition.compose import compose_recipe
from components.config.model_spec.decoder import DecoderSpec
from components.config.recipe import Recipe
from components.config.schema.sections import Parallelism
from components.data.files import create_folder
from components.errors import RecipeError
from components.terminal import log_line, print_output

NOTES = (
    "data: set [training] dataset to a data set that torchtitan knows. The recipe's "
    "order, shares and held-out text are not exported",
    "guard, watchdog, evaluation, profiler, tracking: torchtitan has its own",
)
NO_TOKENIZER = "put the run's tokenizer.json into the folder tokenizer: the recipe sets none"
START = "PYTHONPATH=. torchrun --nproc_per_node=N -m torchtitan.train --job.config_file"
Sections = dict[str, dict[str, Any]]


def write_configuration(arguments: Arguments) -> None:
    """Write the new folder ``file=``, and print what its files leave out to standard error."""
    if (folder := arguments.file) is None:
        raise RecipeError("file", "a new folder is required", "write file=FOLDER")
    recipe = compose_recipe(arguments)
    files = write_files(recipe, " ".join(arguments.words))
    if folder.exists():
        raise RecipeError("file", f"{folder} already exists", "choose another folder")
    with create_folder(folder) as unfinished:
        for name, text in files.items():
            (unfinished / name).write_text(text, "utf-8")
    for note in NOTES if recipe.data.tokenizer_folder != "none" else (*NOTES, NO_TOKENIZER):
        log_line(f"note: {note}")
    log_line(f"run in that folder: {START} {recipe.name}.toml")
    print_output(str(folder))


def write_files(recipe: Recipe, command: str) -> dict[str, str]:
    """Return the text of each file by name; RecipeError if torchtitan cannot train it."""
    features = recipe.decoder_spec
    check_recipe(recipe)
    return {
        f"{recipe.name}.toml": _write_toml(command, _list_sections(recipe)),
        f"recipe_{recipe.name}.py": _write_module(recipe, features),
    }


def _list_sections(recipe: Recipe) -> Sections:
    """Return every key of ``JobConfig`` that the recipe sets."""
    adam, budget, degrees = recipe.optimizer, recipe.budget, recipe.parallelism
    tokenizer = recipe.data.tokenizer_folder
    return {
        "job": {"description": recipe.description, "dump_folder": "outputs"},
        "experimental": {"custom_import": f"recipe_{recipe.name}"},
        "model": {
            "name": recipe.name,
            "flavor": recipe.name,
            "hf_assets_path": (
                "tokenizer" if tokenizer == "none" else str(Path(tokenizer).resolve())
            ),
        },
        "optimizer": {
            "name": "AdamW",
            **{key: adam[key] for key in ("lr", "beta1", "beta2", "eps", "weight_decay")},
        },
        "training": {
            "seq_len": budget.sequence_length,
            "local_batch_size": degrees.microbatch_sequences,
            "global_batch_size": recipe.derived_numbers.samples_per_step,
            "steps": recipe.derived_numbers.steps,
            "max_norm": adam["clip_norm"],
            "dtype": "float32",
            "mixed_precision_param": recipe.precision.compute,
            "mixed_precision_reduce": "float32",
            "gc_freq": degrees.gc_every_steps,
        },
        "parallelism": _parallelism(degrees),
        "activation_checkpoint": _recomputation(degrees),
        "compile": {"enable": degrees.compile != "none", "components": ["model"]},
        "checkpoint": {
            "enable": True,
            "interval": max(1, recipe.checkpoint.every_tokens // budget.global_batch_tokens),
        },
        "debug": {"seed": budget.seed},
    }


def _parallelism(p: Parallelism) -> dict[str, Any]:
    """Map ZeRO to FSDP: 0 replicates, 2 keeps gathered weights for backward, 3 frees them."""
    shard = p.data_shard if p.zero else 1
    return {
        "data_parallel_replicate_degree": p.data // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if p.zero == 3 else "never",
        "tensor_parallel_degree": p.tensor,
        "context_parallel_degree": p.context,
    }


def _recomputation(p: Parallelism) -> dict[str, Any]:
    match p.recompute:
        case "full" if p.recompute_every > 1:
            return {"mode": "selective", "selective_ac_option": str(p.recompute_every)}
        case "selective":
            return {"mode": "selective", "selective_ac_option": "op"}
        case mode:
            return {"mode": mode}


def _write_toml(command: str, sections: Sections) -> str:
    words = " ".join(command.split())  # a comment is one line
    lines = [f"# Written for torchtitan {VERSION} by `python run.py {words}`."]
    for name, keys in sections.items():
        lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in keys.items())]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    """Format a TOML value: floats as Python does, all other types as JSON does."""
    return repr(value) if type(value) is float else json.dumps(value, ensure_ascii=False)


def _write_module(recipe: Recipe, features: DecoderSpec) -> str:
    from jinja2 import StrictUndefined, Template

    first = features.initialization
    layers = 2 * features.num_layers if first.residual == "scaled" else 1
    template: Template = Template(
        Path(__file__).with_name("torchtitan.py.j2").read_text("utf-8"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return template.render(
        version=VERSION,
        name=recipe.name,
        m=features,
        scaling=features.positions.scaling,
        # torchtitan's width: multiple_of x ceil(int(multiplier x int(8 dim / 3)) /
        # multiple_of).
        multiplier=features.mlp.ffn_dim / (16 * features.dim / 3),
        length=recipe.budget.sequence_length,
        std=first.initializer_range,
        residual_std=first.initializer_range / layers**0.5,
        cutoff=first.cutoff,
        kind={"Cosine": "cosine", "WarmupStableDecay": "wsd"}[class_of(recipe.schedule)],
        rates=recipe.schedule,
        step_tokens=recipe.budget.global_batch_tokens,
    )
