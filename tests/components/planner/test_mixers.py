"""Linear mixers in plans: bytes that autograd keeps, and operators that the host starts."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from components.config.model_spec.mixers import MixerSpec
from components.planner.activations import layer_bytes_per_token
from components.planner.job import job_from_recipe
from components.planner.passes import FORWARD_SCAN_STARTS, SCAN_STARTS, repeated_seconds
from tests.components.config.test_layer_patterns import WORDS
from tests.components.model.mixers.builders import (
    DIM,
    build_mixer,
    build_scope,
    delta_spec,
    kimi_spec,
    mamba_spec,
)
from tests.components.planner.jobs import hopper, ours
from tests.recipes.compositions import compose

LENGTH = 128
SPEED = ours().speed
VIEWS = {
    *("view", "select", "slice", "expand", "permute", "transpose", "t", "unsqueeze", "squeeze"),
    *("_unsafe_view", "alias", "detach", "split", "as_strided", "split_with_sizes", "unbind"),
}


class Starts(TorchDispatchMode):
    """Count of the operators that compute, not only change a view."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += func.overloadpacket.__name__ not in VIEWS
        return func(*args, **(kwargs or {}))


def count_starts(spec: MixerSpec, chunks: int) -> tuple[int, int]:
    """Return the operators of the forward pass, and of both passes."""
    mixer, length = build_mixer(spec), chunks * spec.chunk_tokens
    hidden = torch.randn(1, length, DIM, requires_grad=True)
    with Starts() as starts:
        output = mixer(hidden, build_scope(length=length)).sum()
        forward: int = starts.count
        output.backward()
    both: int = starts.count
    return forward, both


@pytest.mark.parametrize("spec", [delta_spec(), kimi_spec(), mamba_spec()])
def test_host_starts_of_a_chunk_equal_the_scan(spec: MixerSpec) -> None:
    many, few = count_starts(spec, 7), count_starts(spec, 3)
    forward, both = ((more - less) / 4 for more, less in zip(many, few, strict=True))
    assert forward == FORWARD_SCAN_STARTS[spec.state_products]
    assert both == pytest.approx(SCAN_STARTS[spec.state_products], abs=3)


@pytest.mark.parametrize(
    ("recompute", "repeats"), [("selective", 0), ("full", 1), (("attention",), 1)]
)
def test_a_recomputed_scan_starts_its_forward_operators_again(recompute, repeats):
    recipe = compose("olmo2_1b", "scale=mini", *WORDS)
    job = job_from_recipe(recipe)
    layer = replace(job, shape=job.shape.shape_of(0)).with_layout(recompute=recompute)
    mixer = layer.shape.layer_type.mixer
    assert mixer is not None
    tokens = 7 * mixer.chunk_tokens
    short, long = (
        repeated_seconds(replace(layer, sequence_length=length), hopper(), SPEED)
        for length in (tokens, 2 * tokens)
    )
    starts = FORWARD_SCAN_STARTS[mixer.state_products] * 7
    assert long - short == pytest.approx(repeats * starts * SPEED.launch_seconds)


WIDE = {"num_heads": 8, "num_key_heads": 4, "key_dim": 16, "value_dim": 32}


@pytest.mark.parametrize(
    "spec",
    [delta_spec(**WIDE), kimi_spec(num_heads=4, key_dim=32, value_dim=32), mamba_spec(**WIDE)],
)
def test_kept_bytes_are_those_that_autograd_saves(spec: MixerSpec) -> None:
    recipe = compose("olmo2_1b", "scale=parity", *WORDS)
    job = job_from_recipe(recipe)
    decoder = job.shape.model_copy(update={"pattern": ("mixer",), "mixers": {"mixer": spec}})
    shape = decoder.shape_of(0)
    planned = layer_bytes_per_token(replace(job, shape=shape), "none")
    planned -= 2.0 * shape.dim  # the input of the norm
    mixer = spec.build_part(dim=shape.dim)
    weights = {weight.untyped_storage().data_ptr() for weight in mixer.parameters()}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    hidden = torch.randn(1, LENGTH, shape.dim, dtype=torch.bfloat16, requires_grad=True)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16),
    ):
        output = mixer(hidden, build_scope(length=LENGTH))
    assert output.isfinite().all()
    tensors = [tensor for key, tensor in saved.items() if key not in weights]
    kept = [tensor.untyped_storage().nbytes() for tensor in tensors]
    assert planned == pytest.approx(sum(kept) / LENGTH, rel=0.15)
