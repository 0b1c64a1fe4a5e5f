"""Merged checkpoints: coefficients, averaged weights, and copied buffers."""

import json
import math
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.checkpoint.metadata import FileSection, Marker, RunProgress
from components.checkpoint.retention import complete_checkpoint, get_partial_folder
from components.config.schema.children import Average
from components.convert.merging import (
    average_into,
    buffers_of,
    check_whole,
    compute_coefficients,
    last_checkpoints,
)
from components.errors import RecipeError

FINGERPRINT = "of one recipe"
Tensors = Mapping[str, Tensor]


def write(folder: Path, tokens: int, tensors: Tensors, *, ranks: int = 1) -> Path:
    """Write a checkpoint of several ranks; each writes its rows to its own file."""
    progress, files = RunProgress(step=tokens, tokens=tokens), {}
    given: dict[str, Any] = {"kind": "tokens", "fingerprint": FINGERPRINT}
    marker = Marker(progress=progress, held_out_loss=None, files={}, **given)
    target = folder / marker.folder_name
    get_partial_folder(target).mkdir(parents=True)
    for rank in range(ranks):
        pieces, offsets = {}, {}
        for name, value in tensors.items():
            alone = value.dim() == 0 or len(value) < ranks
            if alone and rank:
                continue
            rows = value if alone else value.tensor_split(ranks)[rank]
            first = 0 if alone else sum(map(len, value.tensor_split(ranks)[:rank]))
            begin = [first, *[0] * (value.dim() - 1)][: value.dim()]
            key = f"{name}@{','.join(map(str, begin))}" if any(begin) else name
            pieces[key], offsets[key] = rows.contiguous(), {"saved_offsets": begin}
        file = get_partial_folder(target) / f"shard-{rank + 1:05d}-of-{ranks:05d}.safetensors"
        notes = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0"}
        save_file(pieces, file, metadata=notes)
        content = file.read_bytes()
        files[file.name] = (FileSection(len(content), sha256(content).hexdigest()),)
    complete_checkpoint(target, Marker(**{**vars(marker), "files": files}))
    return target


def merged(
    folder: Path,
    average: Average = "uniform",
    count: int = 3,
    *,
    buffers: frozenset[str] = frozenset(),
    ema_decay: float | None = None,
) -> dict[str, Tensor]:
    chosen = last_checkpoints(folder, count, None)
    parts = check_whole(chosen, compute_coefficients(average, count, ema_decay), FINGERPRINT)
    out = folder / f"out-{average}-{count}"
    average_into(out, parts, buffers=buffers)
    return {name: x for file in sorted(out.iterdir()) for name, x in load_file(file).items()}


def drawn(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model.matrix.weight": torch.randn(6, 4, generator=generator).to(dtype),
        "model.experts.weight": torch.randn(3, 4, 2, generator=generator).to(dtype),
        "model.norm.weight": torch.randn(5, generator=generator).to(dtype),
        "model.router.bias": torch.randn(4, generator=generator),
        "model.seen": torch.tensor(seed),
        "optimizer.state.matrix.weight.exp_avg": torch.randn(6, 4, generator=generator),
    }


AVERAGES: list[Average] = ["uniform", "linear", "1-sqrt", "cosine", "exponential"]


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_coefficients_sum_to_one_and_weigh_updates_by_the_decay(average, count):
    """c_k = w_k, c_j = w_j - w_(j+1), c_0 = 1 - w_1: WSM, section 3."""
    parts = compute_coefficients(average, count, None)
    assert sum(parts) == pytest.approx(1.0)
    assert min(parts) >= 0.0
    for update in range(1, count):
        done = update / count
        left = {
            "cosine": (1 + math.cos(math.pi * done)) / 2,
            "1-sqrt": 1 - done**0.5,
            "exponential": 2 * 0.5**done - 1,
        }
        assert sum(parts[update:]) == pytest.approx(left.get(average, 1 - done))


def test_coefficients_equal_megatrons_merge_and_the_recursion():
    """Megatron: ``minus-sqrt`` of 4 checkpoints, ``tools/checkpoint/weighted_merge.py``."""
    expected = [0.5, 0.2071, 0.1589, 0.1340]
    assert compute_coefficients("1-sqrt", 4, None) == pytest.approx(expected, abs=5e-5)
    values = [3.0, -1.0, 4.0, 1.5]
    mean = values[0]
    for value in values[1:]:
        mean = 0.8 * mean + 0.2 * value
    parts = compute_coefficients("ema", 4, 0.8)
    weighted = [part * value for part, value in zip(parts, values, strict=True)]
    assert sum(weighted) == pytest.approx(mean)


def test_a_merge_equals_the_start_plus_weighted_updates(tmp_path):
    """The identity of WSM, for updates of SGD."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(16, 8), torch.randn(16, 4)
    saved = []
    for step in range(5):
        saved.append({f"model.{k}": v.detach().clone() for k, v in model.named_parameters()})
        write(tmp_path, 10 * (step + 1), saved[-1])
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    found = merged(tmp_path, "1-sqrt", 5)
    for name in saved[0]:
        expected = saved[0][name].double()
        for update in range(1, 5):
            change = saved[update][name].double() - saved[update - 1][name].double()
            expected += (1 - math.sqrt(update / 5)) * change
        torch.testing.assert_close(found[name].double(), expected, rtol=0, atol=1e-7)


def test_the_mean_equals_torchs_averaged_model(tmp_path: Path) -> None:
    weights = [drawn(seed) for seed in range(4)]
    model = nn.Linear(4, 6, bias=False)
    averaged = AveragedModel(model)
    for place, tensors in enumerate(weights):
        model.weight.data.copy_(tensors["model.matrix.weight"])
        averaged.update_parameters(model)
        write(tmp_path, place + 1, tensors)
    found = merged(tmp_path, "uniform", 4)["model.matrix.weight"]
    torch.testing.assert_close(found, averaged.module.weight.data, rtol=0, atol=1e-7)


def test_the_average_of_equal_checkpoints_is_each_of_them(tmp_path: Path) -> None:
    for tokens in (1, 2, 3):
        write(tmp_path, tokens, drawn(7))
    found = merged(tmp_path, "cosine")
    assert found.keys() == {name for name in drawn(7) if name.startswith("model.")}
    assert all(found[name].equal(drawn(7)[name]) for name in found)


def test_checkpoints_are_ordered_by_tokens_and_not_by_names(tmp_path: Path) -> None:
    for tokens in (9, 10, 11):
        write(tmp_path, tokens, drawn(tokens))
    last = [folder.name[-3:] for folder in last_checkpoints(tmp_path, 3, None)]
    assert last == ["009", "010", "011"]
    assert [folder.name[-3:] for folder in last_checkpoints(tmp_path, 1, 10)] == ["010"]


def test_the_number_of_writing_ranks_changes_no_bit(tmp_path: Path) -> None:
    for seed, mixed in enumerate((1, 3, 2)):
        write(tmp_path / "one", seed + 1, drawn(seed))
        write(tmp_path / "more", seed + 1, drawn(seed), ranks=mixed)
    found, expected = merged(tmp_path / "more", "cosine"), merged(tmp_path / "one", "cosine")
    assert all(found[name].equal(expected[name]) for name in expected)


def test_rounded_weights_and_masters_are_averaged_in_float32(tmp_path):
    weights = [drawn(seed, torch.bfloat16) for seed in range(3)]
    masters = [drawn(seed)["model.experts.weight"].flatten(0, 1) for seed in range(3)]
    for place, (rounded, master) in enumerate(zip(weights, masters, strict=True)):
        write(tmp_path, place + 1, rounded | {"optimizer.state.experts.weight.master": master})
    found = merged(tmp_path)
    matrices = torch.stack([rounded["model.matrix.weight"].float() for rounded in weights])
    torch.testing.assert_close(found["model.matrix.weight"], matrices.mean(0))
    torch.testing.assert_close(
        found["model.experts.weight"].flatten(0, 1), torch.stack(masters).mean(0)
    )


def test_buffers_and_integers_come_from_the_newest_checkpoint(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path, seed + 1, drawn(seed))
    found = merged(tmp_path, buffers=frozenset({"router.bias"}))
    assert found["model.router.bias"].equal(drawn(2)["model.router.bias"])
    assert int(found["model.seen"]) == 2


def test_missing_and_different_checkpoints_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 1, drawn(1))
    with pytest.raises(RecipeError, match="last: 3 checkpoints requested, but only 1"):
        merged(tmp_path)
    write(tmp_path, 2, {"model.matrix.weight": torch.zeros(2, 2)})
    with pytest.raises(RecipeError, match="has different weights from the newest"):
        merged(tmp_path, count=2)
    chosen = last_checkpoints(tmp_path, 1, None)
    with pytest.raises(RecipeError, match="merge checkpoints of one run"):
        check_whole(chosen, [1.0], "another")


def test_the_bias_that_balances_experts_is_a_buffer() -> None:
    words = ["recipe=mula7b_a1b", "model.mlp.balance_rate=1e-3"]
    model = compose_recipe(read_point(words)).model
    assert "layers.0.mlp.choice_bias" in buffers_of(model)
    assert not any("router" in name for name in buffers_of(model))
