"""Records of two runs are compared number by number, and missing values fail."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from components.parity import compare
from components.run.folder import RunFolder

Change = Callable[[list[compare.RankRecord]], object]


def record(
    rank: int, losses: list[dict[int, float]], tensors: dict[str, Tensor]
) -> compare.RankRecord:
    return compare.RankRecord(
        rank=rank, losses=losses, gradient_norms=[2.0, 3.0], rates=[0.0, 0.01], tensors=tensors
    )


def tensors() -> dict[str, Tensor]:
    """Two parameters; the second has a gradient of exactly 0."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(4, 3, 5, dtype=torch.float64, generator=generator)
    return {
        "gradient/norm.weight": drawn[0],
        "gradient/key.bias": drawn[1] * 1e-18,
        "weight/norm.weight": 1 + drawn[2],
        "weight/key.bias": drawn[3] * 1e-12,
    }


def one_process() -> compare.RankRecord:
    return record(0, [{0: 6.0, 2: 6.1, 4: 6.2, 6: 6.3}, {8: 5.0, 10: 5.1}], tensors())


def two_ranks() -> list[compare.RankRecord]:
    return [
        record(0, [{0: 6.0, 2: 6.1}, {8: 5.0}], tensors()),
        record(1, [{4: 6.2, 6: 6.3}, {10: 5.1}], tensors()),
    ]


def compared(records: list[compare.RankRecord]) -> compare.Comparison:
    return compare.compare_records(one_process(), records)


def test_equal_records_are_within_tolerance() -> None:
    comparison = compared(two_ranks())
    assert comparison.is_within_tolerance
    assert comparison.failure_texts == []
    assert [part.difference for part in comparison.largest_differences.values()] == [0, 0, 0, 0]
    assert compared([one_process()]).is_within_tolerance
    # Ranks without the last stage have no losses.
    assert compared([*two_ranks(), record(2, [{}, {}], tensors())]).is_within_tolerance


@pytest.mark.parametrize(("excess", "holds"), [(0.5, True), (2.0, False)])
def test_a_loss_may_differ_by_its_tolerance_and_no_more(excess: float, holds: bool) -> None:
    records = two_ranks()
    records[1].losses[0][6] *= 1 + excess * compare.LOSS_TOLERANCE
    loss = compared(records).loss
    assert loss.is_within_tolerance is holds
    assert loss.difference == pytest.approx(excess * compare.LOSS_TOLERANCE, rel=1e-4)


def test_the_first_microbatch_that_differs_is_named_with_the_largest_difference() -> None:
    records = two_ranks()
    records[1].losses[0][6] *= 1.01
    records[0].losses[1][8] *= 1.5
    loss = compared(records).loss
    assert loss.where == "step 1, the microbatch from sample 6"
    assert loss.rank == 1
    assert loss.difference == pytest.approx(0.5)


@pytest.mark.parametrize(("excess", "holds"), [(0.5, True), (2.0, False)])
@pytest.mark.parametrize("kind", ["gradient", "weight"])
def test_a_tensor_may_differ_by_its_tolerance(kind: str, excess: float, holds: bool) -> None:
    records = two_ranks()
    spoilt = records[1].tensors[f"{kind}/norm.weight"]
    spoilt[1, 2] += excess * compare.TENSOR_TOLERANCE * spoilt.abs().max()
    part = compared(records).largest_differences[kind]
    assert part.is_within_tolerance is holds
    assert (part.where, part.rank) == ("norm.weight", 1)


def test_a_different_copy_on_one_rank_is_found() -> None:
    records = two_ranks()
    records[1].tensors["weight/norm.weight"].mul_(1.001)
    (problem,) = compared(records).failure_texts
    assert problem.startswith("weight of norm.weight, rank 1: differs by 1.00e-03, more than")


def test_a_zero_gradient_may_differ_only_by_rounding() -> None:
    records = two_ranks()
    records[0].tensors["gradient/key.bias"].neg_()
    records[0].tensors["weight/key.bias"].neg_()
    assert compared(records).is_within_tolerance
    records[0].tensors["gradient/key.bias"].add_(1e-10)
    assert compared(records).gradient.where == "key.bias"
    assert not compared(records).is_within_tolerance


def test_a_wrong_norm_fails() -> None:
    records = two_ranks()
    records[1].gradient_norms[1] *= 5 / 6
    comparison = compared(records)
    assert not comparison.is_within_tolerance
    assert comparison.gradient_norm.where == "step 2"
    assert comparison.gradient_norm.difference == pytest.approx(1 / 6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("kind", ["loss", "gradient", "gradient_norm"])
def test_nan_and_infinity_fail_even_on_both_sides(kind: str, value: float) -> None:
    reference, records = one_process(), two_ranks()
    for side in (reference, *records):
        if kind == "loss" and 0 in side.losses[0]:
            side.losses[0][0] = value
        elif kind == "gradient":
            side.tensors["gradient/norm.weight"][0, 0] = value
        elif kind == "gradient_norm":
            side.gradient_norms[0] = value
    found = getattr(compare.compare_records(reference, records), kind)
    assert not found.is_within_tolerance
    assert kind != "gradient" or found.where == "norm.weight"


def test_nan_outweighs_any_difference() -> None:
    records = two_ranks()
    records[0].tensors["weight/norm.weight"].mul_(100)
    records[1].tensors["weight/key.bias"][0, 0] = math.nan
    assert compared(records).weight.where == "key.bias"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda ranks: [rank.tensors.pop("gradient/norm.weight") for rank in ranks],
            "gradient/norm.weight: on no rank",
        ),
        (
            lambda ranks: ranks[1].tensors.update({"weight/extra": torch.ones(2)}),
            "weight/extra: on rank 1, but not in one process",
        ),
        (
            lambda ranks: ranks[1].tensors.update({"weight/norm.weight": torch.ones(3, 2)}),
            "weight/norm.weight: rank 1 has the shape (3, 2), not (3, 5)",
        ),
        (
            lambda ranks: ranks[1].losses[1].pop(10),
            "step 2: no rank saw a microbatch from sample 10",
        ),
        (
            lambda ranks: ranks[0].losses[0].update({12: 6.0}),
            "step 1: one process never saw the microbatch from sample 12",
        ),
    ],
)
def test_a_missing_value_is_named(change: Change, message: str) -> None:
    records = two_ranks()
    change(records)
    assert compared(records).lacking == (message,)
    assert compared(records).failure_texts == [message]


def test_missing_steps_are_named() -> None:
    records = two_ranks()
    for side in records:
        side.losses.pop()
    assert compared(records).lacking == (
        "rank 0 took 1 steps, expected 2",
        "rank 1 took 1 steps, expected 2",
    )


def test_empty_records_fail() -> None:
    records = [record(0, [{}, {}], {})]
    comparison = compared(records)
    assert not comparison.gradient.is_within_tolerance
    assert comparison.gradient.where == "nothing that both sides have"
    assert math.isnan(compare.compare_losses(one_process(), records).difference)


@pytest.mark.parametrize("at", [0, 1])
def test_a_loss_that_is_not_finite_gives_one_message(at: int) -> None:
    reference, records = one_process(), two_ranks()
    for side in (reference, records[0])[at:]:
        side.losses[1][8] = math.nan
    comparison = compare.compare_records(reference, records)
    who = ("one process", "rank 0")[at]
    assert not comparison.is_within_tolerance
    assert comparison.failure_texts == [
        f"{who}: the loss or gradient norm of step 2 is not finite: the run diverged "
        "and cannot be compared"
    ]


def test_a_loss_that_is_not_finite_is_null_in_a_record(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "rank-00000.safetensors")
    tree = {"losses": [{"0": math.inf}], "gradient_norms": [math.nan], "rates": [0.1]}
    RunFolder(tmp_path).write_json("rank-00000.json", tree)
    (found,) = compare.read_records(tmp_path, 1)
    assert math.isnan(found.losses[0][0])
    assert math.isnan(found.gradient_norms[0])


def test_written_records_are_read_unchanged(tmp_path: Path) -> None:
    written = two_ranks()
    for side in written:
        name = f"rank-{side.rank:05d}"
        save_file(dict(side.tensors), tmp_path / f"{name}.safetensors")
        tree = {key: getattr(side, key) for key in ("losses", "gradient_norms", "rates")}
        (tmp_path / f"{name}.json").write_text(json.dumps(tree))
    read = compare.read_records(tmp_path, 2)
    assert [side.losses for side in read] == [side.losses for side in written]
    assert compare.compare_records(one_process(), read).is_within_tolerance
