"""Attention at full size on a fake GPU: no tensor is length times length."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from typing_extensions import override

from components.build import build_node
from components.config.recipe import Recipe
from components.config.schema.types import to_plain
from components.distributed.context import ContextCore, SequencePart
from components.dryrun.fake_world import device_kernels, fake_world
from components.dryrun.trackers import OperatorWatch
from components.model.attention import AttentionContext
from components.torch_internals.operators import FakeTensorMode, tree_leaves
from tests.recipes.compositions import compose, composed

# Of each kind of attention a recipe, with the longest sequences where many have it.
KINDS = (
    *("bloom176b", "teuken7b", "gpt175b", "apertus_70b_64k", "olmo3_7b", "gpt_oss_20b"),
    *("dsv3_1t", "olmo_hybrid_7b", "qwen3_next_80b_a3b", "nemotron_h_8b", "smollm3_3b"),
)


class Largest(OperatorWatch):
    """Remember the shapes with two dimensions of the length of what is at hand."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.square: list[tuple[str, tuple[int, ...]]] = []

    @override
    def call_operator(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and sum(n >= self.length for n in made.shape) > 1:
                self.square.append((str(func), tuple(made.shape)))
        return result


def attend(recipe: Recipe, device: str, context: int, masked: bool) -> Largest:
    """Go through a core of each window, forward and backward, as the first context rank."""
    shape, tensor = recipe.decoder_spec.attention, recipe.parallelism.tensor
    sequences, whole = recipe.parallelism.microbatch_sequences, recipe.budget.sequence_length
    part = SequencePart(rank=0, ranks=context)
    length, counts = whole // context, (shape.num_heads, *[shape.num_kv_heads] * 2)
    seen = Largest(length)
    with fake_world(0, context), ExitStack() as modes:
        core = core_of(recipe)
        if context > 1:
            mesh = init_device_mesh("cpu", (context,), mesh_dim_names=("context",))
            core = ContextCore(core, mesh)
        modes.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        heads = [
            torch.empty(
                sequences,
                max(count // tensor, 1),
                length,
                shape.head_dim,
                dtype=torch.bfloat16,
                requires_grad=True,
            )
            for count in counts
        ]
        with device_kernels(device), seen:
            whole_scope = scope_of(recipe, part, masked)
            hidden = torch.empty(sequences, length, 1, dtype=torch.bfloat16)
            for window in {None if one == "full" else one for one in shape.windows}:
                scope = whole_scope.for_window(window)
                core.prepare_masks(hidden, scope, head_dim=shape.head_dim)
                core(*heads, scope, first_head=0).sum().backward()
    return seen


def core_of(recipe: Recipe) -> Any:
    given = {**to_plain(recipe.model["attention"]), "bias": False, "qk_norm": None}
    built: Any = build_node(given, "model.attention")
    with torch.device("meta"):
        return built(dim=recipe.decoder_spec.dim).core


def scope_of(recipe: Recipe, part: SequencePart, masked: bool) -> AttentionContext:
    shape, length = recipe.decoder_spec, recipe.budget.sequence_length
    kind: Any = build_node(to_plain(recipe.model["positions"]), "model.positions")
    heads = {"num_heads": shape.attention.num_heads, "head_dim": shape.attention.head_dim}
    positions: nn.Module = kind(dim=1, **heads)
    places = part.position_ids(length // part.ranks, torch.device("cpu"))
    if part.ranks == 1:
        places = torch.arange(length)
    documents = torch.empty(recipe.parallelism.microbatch_sequences, length, dtype=torch.long)
    return AttentionContext(
        encoding=positions(places), documents=documents if masked else None, length=length
    )


@pytest.mark.parametrize("name", KINDS)
def test_no_tensor_of_length_times_length_is_made_on_a_gpu(name: str) -> None:
    recipe = composed(name, "full")
    for device in ("cuda", "xpu"):
        for context in (1, 2):
            for masked in (False, True):
                seen = attend(recipe, device, context, masked)
                assert seen.square == [], (device, context, masked)


@pytest.mark.parametrize("context", [1, 2])
@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_windowed_layers_make_no_square_tensor(device: str, context: int) -> None:
    recipe = compose("playbook1b", "scale=full", "model.attention.windows=[1024, full]")
    assert attend(recipe, device, context, masked=False).square == []


def test_the_detector_finds_a_square_tensor() -> None:
    recipe = composed("bloom560m", "full")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "components.model.attention.select_backends", lambda order, case: ("math",)
        )
        patch.setattr("components.model.attention.AttentionContext.is_plain_causal", True)
        assert attend(recipe, "cuda", 1, masked=False).square
