"""Products in float8: torchao's linear maps in place of those of the layers.

Master weights, gradients and all between the products stay as they are. Of the three products
of a linear map two are in e4m3 (4 bits of exponent, 3 of mantissa, https://arxiv.org/abs/2209.05433):

    output = float8(input, a scale a token) @ float8(weight, a scale a row).T
    input's gradient = float8(output's gradient, a scale a token) @ float8(weight, one scale)
    weight's gradient = output's gradient.T @ input, in bfloat16

This is torchao's ``rowwise_with_gw_hp``, of its three the most accurate by its own words:
https://docs.pytorch.org/ao/main/api_reference/generated/torchao.float8.Float8LinearRecipeName.html
and the only one that takes no scale over all tokens of a microbatch, which would depend on how
a batch is cut. Embedding, head, norms, attention's core, routers and experts are not touched.
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
    """Raise RecipeError where torchao is not installed."""
    if find_spec("torchao") is None:
        raise RecipeError(
            "precision.compute",
            "float8, for which torchao is not installed here",
            "pip install --no-deps -r requirements/fp8.lock, or set precision.compute=bfloat16",
        )


def float8_layers(model: nn.Module, *, emulates: bool) -> None:
    """Let the linear maps of ``model``'s layers compute in float8; weights and names stay.

    ``emulates`` rounds the same numbers and multiplies them in float32, where a device has no
    such product. Call it before anything is hung on the layers.

    Raises:
        RecipeError: torchao is not installed.
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
        for name in marked:  # by this mark initialization finds such a map
            layer.get_submodule(name).writes_residual = True


def _torchao() -> Any:
    """Import it without its compiled operations, which are not for training in float8."""
    check_torchao()
    os.environ.setdefault("TORCHAO_FORCE_SKIP_LOADING_SO_FILES", "1")
    # It tells that it skips them, and torch that it registers a type twice.
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
    old_name = r"torch\.get_autocast_gpu_dtype"  # which it calls
    warnings.filterwarnings("ignore", old_name, DeprecationWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # where nobody compiled it before
        import torchao.float8

    return torchao.float8
