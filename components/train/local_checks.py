"""Checks of a recipe before it trains: the devices of this machine, packages, and all parts."""

from importlib.util import find_spec
from pathlib import Path

import torch

from components.build import build
from components.config.recipe import Recipe
from components.config.rules.check import warnings_of
from components.config.rules.engine import FLOAT8
from components.config.schema.types import thaw
from components.convert.reading import read_folder
from components.distributed.devices import check_devices, device_type, emulation_of
from components.distributed.pipeline import check_schedule
from components.errors import RecipeError
from components.model.float8 import check_torchao
from components.terminal import say
from components.versions import outside


def check_machine(recipe: Recipe) -> None:
    """Check that this machine can train a recipe, and print warnings.

    Raises:
        RecipeError: devices are missing, or a part cannot be built.
    """
    check_devices(recipe.cluster)
    for warning in (*outside("above"), *warnings_of(recipe)):
        say(warning)
    if emulated := emulation_of(recipe, device_type(recipe.cluster.device)):
        say(f"precision.compute: float8 is {emulated}")
    check_builds(recipe)


def check_builds(recipe: Recipe) -> None:
    """Build every part once, the model on ``meta``: what a constructor refuses fails here.

    Raises:
        RecipeError: whatever a constructor says is wrong, weights to begin with that are of
            another model, an engine that is not installed, or a schedule that this torch lacks.
    """
    if recipe.parallelism.engine == "deepspeed" and find_spec("deepspeed") is None:
        raise RecipeError(
            "parallelism.engine",
            "deepspeed, which is not installed here",
            "run make setup again, or set parallelism.engine=mesh",
        )
    if recipe.precision.compute == FLOAT8:
        check_torchao()
    if recipe.parallelism.pipeline > 1:
        check_schedule(recipe.parallelism.schedule)
    build(recipe.tokenizer, "tokenizer")
    build(recipe.schedule, "schedule")
    with torch.device("meta"):
        model = build(recipe.model, "model")
    build(recipe.optimizer, "optimizer")(parameters=list(model.named_parameters()))
    if recipe.model["init_from"] != "none":
        # Copying into `meta` copies nothing: names, shapes and vocabulary are what is checked.
        read_folder(
            Path(recipe.model["init_from"]),
            model,
            section=thaw(recipe.model),
            tokenizer_vocab_size=recipe.tokenizer["vocab_size"],
        )
