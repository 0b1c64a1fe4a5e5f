"""torchtitan, where it is installed, reads what is written for it, and its losses are ours.

It seldom is: what its version gave is kept in ``tests/data/torchtitan/losses.json``.
"""

import importlib
import json
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from command.actions.export.checks import VERSION
from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.main import main
from components.build import build_node
from components.config.part_nodes import read_decoder
from components.config.recipe import Recipe
from components.config.schema.types import to_plain
from components.convert.family import choose_family
from components.convert.folder import their_tensors

WORDS = [
    *("recipe=playbook1b", "scale=mini", "model.tied_embeddings=false", "optimizer.decay=all"),
    *("precision.compute=float32", "model.attention.num_kv_heads=2", "optimizer.lr=3e-3"),
    "schedule.warmup_tokens=8_192",
]
SCALED = [
    "model.positions.scaling={_target_: components.model.rotary_scaling.Llama3Scaling, "
    "factor: 4.0, original_tokens: 64, low_frequency_factor: 1.0, high_frequency_factor: 4.0}"
]
STOOD_IN = ("Dataset", "load_dataset", "split_dataset_by_node", "generate_permute_indices")
STEPS, SEQUENCES = 10, 4  # later float32's roundings have grown to 3e-5
TOLERANCE = 1e-5  # of a loss; found were 8e-7

pytestmark = [
    pytest.mark.skipif(find_spec("torchtitan") is None, reason="it is not installed here"),
    pytest.mark.filterwarnings("default"),  # its version is older than our torch
]


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be imported without what its data sets and its experts need."""
    absent = {
        "datasets": ("datasets", "datasets.distributed"),
        "triton": ("torchtitan.models.moe.kernels",),
    }
    for package, modules in absent.items():
        for name in modules if find_spec(package) is None else ():
            module = ModuleType(name)
            module.__dict__.update(dict.fromkeys(STOOD_IN, object))
            monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture(params=[[], SCALED], ids=["plain", "scaled"])
def emitted(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Recipe, Any]:
    """Write the folder, let torchtitan parse its file, and import its module."""
    words = [*WORDS, *request.param]
    folder = tmp_path / "out"
    assert main(["action=export", "engine=torchtitan", *words, f"file={folder}"]) == 0
    monkeypatch.syspath_prepend(str(folder))
    from torchtitan.config import ConfigManager
    from torchtitan.protocols import train_spec

    config = ConfigManager().parse_args([f"--job.config_file={folder}/playbook1b.toml"])
    sys.modules.pop(config.experimental.custom_import, None)
    train_spec._extra_train_specs.clear()
    importlib.import_module(config.experimental.custom_import)
    return request.node.callspec.id, compose_recipe(read_point(words)), config


def batches(recipe: Recipe) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Give the same few sequences in every step, so that the loss falls far."""
    generator = torch.Generator().manual_seed(7)
    shape = (SEQUENCES, recipe.budget.sequence_length + 1)
    whole = torch.randint(recipe.decoder_spec.vocab_size, shape, generator=generator)
    for _ in range(STEPS):
        yield whole[:, :-1], whole[:, 1:].contiguous()


def our_losses(recipe: Recipe, model: Any) -> list[float]:
    """Train by our model, optimizer and schedule."""
    named = list(model.named_parameters())
    adam = build_node(to_plain(recipe.optimizer), "optimizer")(parameters=named)
    schedule, losses = build_node(to_plain(recipe.schedule), "schedule"), []
    for step, (inputs, targets) in enumerate(batches(recipe)):
        for group in adam.param_groups:
            rate = schedule(step * recipe.budget.global_batch_tokens)
            group["lr"] = recipe.optimizer["lr"] * rate
        adam.zero_grad()
        loss = model.compute_loss(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_([one for _, one in named], recipe.optimizer["clip_norm"])
        adam.step()
        losses.append(loss.item())
    return losses


def their_losses(recipe: Recipe, config: Any, weights: dict[str, Any]) -> list[float]:
    """Train by torchtitan's model, loss, optimizer, schedule and clipping, as its file says."""
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.utils import clip_grad_norm_
    from torchtitan.protocols.train_spec import get_train_spec

    spec = get_train_spec(config.model.name)
    args = spec.model_args[config.model.flavor]
    args.update_from_config(config)
    model: Any = spec.model_cls(args)
    adapter = spec.state_dict_adapter(args, None)
    model.load_state_dict(adapter.from_hf(weights))
    dims = ParallelDims(1, 1, 1, 1, 1, 1, 1, 1)
    adam = spec.build_optimizers_fn([model], config.optimizer, dims)
    rates = spec.build_lr_schedulers_fn(adam, config.lr_scheduler, config.training.steps)
    summed, losses = spec.build_loss_fn(config, parallel_dims=dims), []
    for inputs, targets in batches(recipe):
        adam.zero_grad()
        loss = summed(model(inputs), targets) / targets.numel()
        loss.backward()
        clip_grad_norm_(model.parameters(), config.training.max_norm, foreach=True)
        adam.step()
        rates.step()
        losses.append(loss.item())
    return losses


def test_torchtitan_has_our_losses_in_a_miniature(emitted: tuple[str, Recipe, Any]) -> None:
    case, recipe, config = emitted
    torch.manual_seed(3)
    model: Any = build_node(to_plain(recipe.model), "model")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.02)
    features = read_decoder(to_plain(recipe.model))
    rows = features.padded_vocab_size
    named = dict(model.named_parameters())
    theirs = their_tensors(named, choose_family(features), features, rows=rows)
    weights = {name: tensor.clone() for name, tensor in theirs}
    ours = our_losses(recipe, model)
    found = their_losses(recipe, config, weights)
    if where := os.environ.get("KEEP_LOSSES"):
        versions = {"torch": torch.__version__, "torchtitan": VERSION}
        kept = {"losses": {"ours": ours, "torchtitan": found}, "versions": versions}
        Path(where, f"{case}.json").write_text(json.dumps(kept))
    assert found == pytest.approx(ours, rel=TOLERANCE)
    assert ours[-1] < ours[0] - 1


def test_first_weights_have_recipe_deviation(emitted: tuple[str, Recipe, Any]) -> None:
    from torchtitan.protocols.train_spec import get_train_spec

    _, recipe, config = emitted
    spec = get_train_spec(config.model.name)
    model: Any = spec.model_cls(spec.model_args[config.model.flavor])
    torch.manual_seed(1)
    with torch.no_grad():  # as its trainer does
        model.init_weights()
    assert sum(one.numel() for one in model.parameters()) == (
        recipe.decoder_spec.total_parameters + recipe.decoder_spec.padding_parameters
    )
    std = recipe.model["initialization"]["std"]
    for name, weight in model.named_parameters():
        if weight.dim() < 2:
            assert torch.equal(weight, torch.ones_like(weight))
            continue
        onto = name.endswith(("wo.weight", "w2.weight"))
        wanted = std / (2 * recipe.decoder_spec.num_layers) ** 0.5 if onto else std
        assert weight.std().item() == pytest.approx(wanted, rel=0.02), name
