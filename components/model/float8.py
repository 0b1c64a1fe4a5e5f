"""Float8 products: torchao's linear maps replace the linear maps of the layers.

Two of a map's three products are in e4m3 (4 exponent bits, https://arxiv.org/abs/2209.05433):

    output = float8(input, scale per token) @ float8(weight, scale per row).T
    input's gradient = float8(output's gradient, scale per token) @ float8(weight, one scale)
    weight's gradient = output's gradient.T @ input, in bfloat16

This is torchao's ``rowwise_with_gw_hp``, its most accurate recipe and the only one without a
scale over all tokens of a microbatch, which would depend on how a batch is split:
https://docs.pytorch.org/ao/main/api_reference/generated/torchao.float8.Float8LinearRecipeName.html
Master weights, gradients, embedding, head, norms, attention core, routers, experts: unchanged.
"""

import logging
import os
import warnings
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from torch import nn

from components.errors import RecipeError
from components.model.layer import collect_layers
from components.model.moe import expert_layers

RECIPE = "rowwise_with_gw_hp"


def check_torchao() -> None:
    """Raise RecipeError if torchao is not installed."""
    if find_spec("torchao") is None:
        raise RecipeError(
            "precision.compute",
            "float8, for which torchao is not installed here",
            "pip install --no-deps -r requirements/fp8.lock, or set precision.compute=bfloat16",
        )


def float8_layers(model: nn.Module, *, emulates: bool) -> None:
    """Convert the linear maps of ``model``'s layers to float8; keep weights and names.

    ``emulates`` is for devices without float8 products: it rounds the same numbers to float8
    and multiplies them in float32. Call this before hooks or wrappers. RecipeError without
    torchao.
    """
    float8 = _torchao()
    config = replace(float8.Float8LinearConfig.from_recipe_name(RECIPE), emulate=emulates)
    inside = {part for experts in expert_layers(model) for part in experts.modules()}
    for layer in collect_layers(model).values():
        marked = [
            name
            for name, part in layer.named_modules()
            if isinstance(part, nn.Linear) and getattr(part, "writes_residual", False)
        ]
        float8.convert_to_float8_training(
            layer, config=config, module_filter_fn=lambda part, name: part not in inside
        )
        for name in marked:  # initialization reads this flag
            layer.get_submodule(name).writes_residual = True


def _torchao() -> Any:
    """Import torchao without its compiled operators, which float8 training does not use."""
    check_torchao()
    os.environ.setdefault("TORCHAO_FORCE_SKIP_LOADING_SO_FILES", "1")
    # torchao logs that it skips them; torch logs that a type is registered twice.
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
    old_name = r"torch\.get_autocast_gpu_dtype"  # called by torchao
    warnings.filterwarnings("ignore", old_name, DeprecationWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # on the first bytecode compilation
        import torchao.float8

    return torchao.float8
