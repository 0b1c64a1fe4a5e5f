"""Checks of a recipe before training: devices of this machine, packages, and all parts."""

from importlib.util import find_spec
from pathlib import Path

import torch

from components.build import build_node
from components.config.recipe import Recipe
from components.config.rules.check import warnings_of
from components.config.rules.engine import FLOAT8
from components.config.schema.types import to_plain
from components.convert.reading import read_folder
from components.distributed.devices import check_devices, device_type, emulation_of
from components.distributed.pipeline import check_schedule
from components.errors import RecipeError
from components.model.float8 import check_torchao
from components.terminal import log_line
from components.versions import list_outside_range


def check_machine(recipe: Recipe) -> None:
    """Check that this machine can train a recipe, else RecipeError; print warnings."""
    check_devices(recipe.cluster)
    for warning in (*list_outside_range("above"), *warnings_of(recipe)):
        log_line(warning)
    if emulated := emulation_of(recipe, device_type(recipe.cluster.device)):
        log_line(f"precision.compute: float8 is {emulated}")
    check_builds(recipe)


def check_builds(recipe: Recipe) -> None:
    """Build every part once, the model on ``meta``, to find values that a constructor rejects.

    Raises RecipeError also if the initial weights are from another model, if the engine is not
    installed, or if this torch lacks the pipeline schedule.
    """
    if recipe.parallelism.engine == "deepspeed" and find_spec("deepspeed") is None:
        raise RecipeError(
            "parallelism.engine",
            "deepspeed, but DeepSpeed is not installed",
            "run make setup again, or set parallelism.engine=mesh",
        )
    if recipe.precision.compute == FLOAT8:
        check_torchao()
    if recipe.parallelism.pipeline > 1:
        check_schedule(recipe.parallelism.schedule)
    build_node(recipe.tokenizer, "tokenizer")
    build_node(recipe.schedule, "schedule")
    with torch.device("meta"):
        model = build_node(recipe.model, "model")
    build_node(recipe.optimizer, "optimizer")(parameters=list(model.named_parameters()))
    if recipe.model["init_from"] != "none":
        # Copying to `meta` copies nothing, but checks names, shapes and vocabulary.
        read_folder(
            Path(recipe.model["init_from"]),
            model,
            section=to_plain(recipe.model),
            tokenizer_vocab_size=recipe.tokenizer["vocab_size"],
        )
