"""Steps of torchtitan's Llama at the shapes of a recipe.

Model, recomputation, compiler, loss and AdamW are torchtitan's (0.2.2). ``amp`` is autocast,
the default on one device; ``fsdp`` casts by FSDP2, the default on many ranks, here one rank.
torchtitan supports only untied weights and heads of width ``dim / num_heads``.
"""

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.gpu.own_step import join_world
from benchmarks.gpu.peers import PeerStep, adamw_kwargs, is_compiled, recompute_mode
from components.config.recipe import Recipe
from components.errors import RecipeError


class TitanLlama(PeerStep):
    """Steps of torchtitan with weights in float32 and products in bfloat16.

    Raises:
        RecipeError: torchtitan is not installed or does not support the shape.
    """

    def __init__(
        self, recipe: Recipe, device: torch.device, *, policy: Literal["amp", "fsdp"] = "amp"
    ) -> None:
        _check_support(recipe)
        _stub_datasets()
        from torchtitan.components.loss import build_cross_entropy_loss
        from torchtitan.components.optimizer import build_optimizers
        from torchtitan.distributed import ParallelDims
        from torchtitan.distributed.utils import clip_grad_norm_

        config, dims = _config(recipe), ParallelDims(1, 1, 1, 1, 1, 1, 1, 1)
        model = _model(recipe, config, dims, device, policy)
        sum_loss = build_cross_entropy_loss(config)
        optimizers = build_optimizers([model], config.optimizer, dims)

        def loss_of(tokens: Tensor, targets: Tensor) -> Tensor:
            with torch.autocast(device.type, torch.bfloat16, enabled=policy == "amp"):
                loss: Tensor = sum_loss(model(tokens), targets) / targets.numel()
            return loss

        super().__init__(
            recipe,
            device,
            model=model,
            loss_of=loss_of,
            optimizer=optimizers,
            clip=lambda weights, norm: clip_grad_norm_(list(weights), norm, foreach=True),
        )


def _check_support(recipe: Recipe) -> None:
    if find_spec("torchtitan") is None:
        fix = "run make gpu-pack, or compare with hugging_face.Causal"
        raise RecipeError("variant", "torchtitan is not installed", fix)
    shape = recipe.decoder_spec
    width = shape.attention.head_dim * shape.attention.num_heads
    if shape.tied_embeddings or width != shape.dim:
        raise RecipeError(
            "model",
            "torchtitan has no tied weights and only heads of width dim / num_heads",
            "set model.tied_embeddings=false and model.attention.head_dim to that width",
        )


def _stub_datasets() -> None:
    """Register empty modules for the text readers that torchtitan imports (60 MB, not used)."""
    if find_spec("pyarrow") is not None and find_spec("datasets") is not None:
        return
    names = {
        "datasets": ["Dataset", "load_dataset"],
        "datasets.distributed": ["split_dataset_by_node"],
    }
    for name, members in names.items():
        module = ModuleType(name)
        module.__dict__.update(dict.fromkeys(members, object))
        sys.modules.setdefault(name, module)


def _config(recipe: Recipe) -> Any:
    from torchtitan.config import JobConfig

    config, adam = JobConfig(), adamw_kwargs(recipe)
    config.training.seq_len = recipe.budget.sequence_length
    config.training.local_batch_size = recipe.parallelism.microbatch_sequences
    config.compile.enable = is_compiled(recipe)
    config.activation_checkpoint.mode = recompute_mode(recipe)
    config.activation_checkpoint.selective_ac_option = "op"
    config.optimizer.beta1, config.optimizer.beta2 = adam.pop("betas")
    for name, value in adam.items():
        setattr(config.optimizer, name, value)
    return config


def _model(
    recipe: Recipe, config: Any, dims: Any, device: torch.device, policy: str
) -> nn.Module:
    from torchtitan.models.llama3 import Transformer, parallelize_llama
    from torchtitan.models.llama3.infra.parallelize import apply_fsdp

    with torch.device("meta"):
        model = Transformer(_shape(recipe))
    width = model.layers["0"].feed_forward.w1.out_features
    assert width == recipe.decoder_spec.mlp.ffn_dim, f"torchtitan rounds the width to {width}"
    model = parallelize_llama(model, dims, config)
    if policy == "fsdp":
        join_world(device)
        mesh = init_device_mesh(device.type, (1,), mesh_dim_names=("fsdp",))
        apply_fsdp(model, mesh, torch.bfloat16, torch.float32, pp_enabled=False)
    model.to_empty(device=device)
    with torch.no_grad():
        model.init_weights()
    model.train()
    assert isinstance(model, nn.Module)
    return model


def _shape(recipe: Recipe) -> Any:
    """Return the shape in torchtitan's terms, with exactly the recipe's MLP width.

    torchtitan's width is multiple_of x ceil(int(multiplier x int(8 dim / 3)) / multiple_of).
    """
    from torchtitan.models.llama3 import TransformerModelArgs

    shape = recipe.decoder_spec
    return TransformerModelArgs(
        dim=shape.dim,
        n_layers=shape.num_layers,
        n_heads=shape.attention.num_heads,
        n_kv_heads=shape.attention.num_kv_heads,
        vocab_size=shape.vocab_size,
        max_seq_len=recipe.budget.sequence_length,
        multiple_of=shape.mlp.ffn_dim,
        ffn_dim_multiplier=shape.mlp.ffn_dim / (16 * shape.dim / 3),
    )
