"""Comparison of the records of a layout's ranks with the record of one process."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load_file
from torch import Tensor

# Float64 has 16 digits. A sum of thousands of terms in another order keeps 13 or more digits.
# After ten steps of Adam, which divides by roots of tiny squares, weights keep 9 or more.
LOSS_TOLERANCE = 1e-10
TENSOR_TOLERANCE = 1e-8
# A gradient that is mathematically 0 (a bias of keys, which the softmax cancels) is only
# rounding. So differences are relative to at least this fraction of the model's largest
# gradient.
_SMALLEST_GRADIENT = 1e-6

LossByPosition = dict[
    int, float
]  # one step's losses by the position of a microbatch's first sample


class Tolerances(NamedTuple):
    """Tolerances: the largest relative differences that count as rounding."""

    loss: float
    tensor: float
    weight: float


DOUBLE = Tolerances(loss=LOSS_TOLERANCE, tensor=TENSOR_TOLERANCE, weight=TENSOR_TOLERANCE)
# Float32 has 7 digits: the same sums keep 6 of a loss and 5 of a gradient's largest number.
# Adam moves a weight with a gradient of only rounding as far as any other weight.
SINGLE = Tolerances(loss=1e-6, tensor=1e-5, weight=1e-3)


class Largest(NamedTuple):
    """Largest relative difference of a kind, its location, its rank and its tolerance."""

    difference: float
    where: str
    rank: int
    tolerance: float

    @property
    def is_within_tolerance(self) -> bool:
        return self.difference <= self.tolerance  # False for NaN


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Comparison result: the largest differences, and what is missing on one side."""

    loss: Largest
    gradient_norm: Largest
    gradient: Largest
    weight: Largest
    lacking: tuple[str, ...]

    @property
    def is_within_tolerance(self) -> bool:
        return not self.lacking and all(
            largest.is_within_tolerance for largest in self.largest_differences.values()
        )

    @property
    def largest_differences(self) -> dict[str, Largest]:
        """Map the names in the table to the largest differences."""
        names = ("loss", "gradient_norm", "gradient", "weight")
        return {name.replace("_", " "): getattr(self, name) for name in names}

    @property
    def failure_texts(self) -> list[str]:
        """Describe each failure, with the parameter's or the microbatch's name.

        NaN differences are omitted if a missing part or a non-finite loss explains them.
        """
        return [*self.lacking] + [
            f"{kind} of {part.where}, rank {part.rank}: differs by {part.difference:.2e}, "
            f"more than {part.tolerance:.0e}"
            for kind, part in self.largest_differences.items()
            if not (part.is_within_tolerance or (self.lacking and math.isnan(part.difference)))
        ]


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """Record of one rank: losses by step and position, norms and rates by step, tensors."""

    rank: int
    losses: list[LossByPosition]
    gradient_norms: list[float]
    rates: list[float]
    tensors: Mapping[str, Tensor]


def _read_number(value: float | None) -> float:
    """Return NaN for null, which records write for a non-finite number."""
    return math.nan if value is None else value


def read_records(folder: Path, ranks: int) -> list[RankRecord]:
    """Load the records of the ranks of one run."""
    records = []
    for rank in range(ranks):
        tree = json.loads((folder / f"rank-{rank:05d}.json").read_text("utf-8"))
        losses = [
            {int(key): _read_number(loss) for key, loss in step.items()}
            for step in tree.pop("losses")
        ]
        tree["gradient_norms"] = list(map(_read_number, tree["gradient_norms"]))
        tensors = load_file(folder / f"rank-{rank:05d}.safetensors")
        records.append(RankRecord(rank=rank, losses=losses, tensors=tensors, **tree))
    return records


def compare_records(
    reference: RankRecord, records: Sequence[RankRecord], tolerances: Tolerances = DOUBLE
) -> Comparison:
    """Compare every rank's record with the record of the one process."""
    allowed = tolerances.tensor
    steps = zip(reference.gradient_norms, *(x.gradient_norms for x in records), strict=False)
    norms = [
        Largest(_relative(norm - expected, expected), f"step {step}", record.rank, allowed)
        for step, (expected, *theirs) in enumerate(steps, 1)
        for record, norm in zip(records, theirs, strict=True)
    ]
    return Comparison(
        loss=compare_losses(reference, records, tolerances),
        gradient_norm=_worst(norms, allowed),
        gradient=_compare_tensors(reference, records, "gradient", allowed),
        weight=_compare_tensors(reference, records, "weight", tolerances.weight),
        lacking=tuple(_diverged(reference, records) or _lacking(reference, records)),
    )


def compare_losses(
    reference: RankRecord, records: Sequence[RankRecord], tolerances: Tolerances = DOUBLE
) -> Largest:
    """Compare losses by microbatch: the worst difference, at the first failure if any."""
    differences = [
        Largest(
            _relative(loss - expected[position], abs(expected[position])),
            f"step {step}, the microbatch from sample {position}",
            record.rank,
            tolerances.loss,
        )
        for step, (expected, *theirs) in _losses_by_step(reference, records)
        for record, losses in zip(records, theirs, strict=True)
        for position, loss in sorted(losses.items())
        if position in expected
    ]
    first = next((largest for largest in differences if not largest.is_within_tolerance), None)
    worst = _worst(differences, tolerances.loss)
    return worst if first is None else first._replace(difference=worst.difference)


def _losses_by_step(
    reference: RankRecord, records: Sequence[RankRecord]
) -> Iterator[tuple[int, tuple[LossByPosition, ...]]]:
    """Yield each common step, from 1: losses of the one process, then of each rank."""
    return enumerate(zip(*(side.losses for side in (reference, *records)), strict=False), 1)


def _compare_tensors(
    reference: RankRecord, records: Sequence[RankRecord], kind: str, allowed: float
) -> Largest:
    """Compare each rank's tensors of a kind, relative to the parameter's largest value.

    A weight's difference is relative to at least the distance that the steps can move it: a
    weight from 0 without a gradient is only rounding, which Adam's division enlarges.
    """
    sizes = [_size(value) for name, value in reference.tensors.items() if name.startswith(kind)]
    least = sum(reference.rates) if kind == "weight" else _SMALLEST_GRADIENT * max(sizes)
    differences = [
        Largest(
            _relative(_size(value - expected), max(_size(expected), least)),
            name.removeprefix(f"{kind}/"),
            record.rank,
            allowed,
        )
        for record in records
        for name, value in record.tensors.items()
        if name.startswith(f"{kind}/")
        and (expected := reference.tensors.get(name)) is not None
        and expected.shape == value.shape
    ]
    return _worst(differences, allowed)


def _diverged(reference: RankRecord, records: Sequence[RankRecord]) -> list[str]:
    """Return a message for the first step with a non-finite loss or norm, if there is one."""
    sides = {"one process": reference, **{f"rank {x.rank}": x for x in records}}
    problems = [
        f"{name}: the loss or gradient norm of step {step} is not finite: the run diverged "
        "and cannot be compared"
        for name, side in sides.items()
        for step, (losses, norm) in enumerate(
            zip(side.losses, side.gradient_norms, strict=False), 1
        )
        if not all(map(math.isfinite, (norm, *losses.values())))
    ]
    return problems[:1]


def _lacking(reference: RankRecord, records: Sequence[RankRecord]) -> Iterator[str]:
    """Yield tensors, steps and microbatches that only one side has, and shapes that differ."""
    for record in records:
        num_steps, steps = len(record.losses), len(reference.losses)
        if num_steps != steps:
            yield f"rank {record.rank} took {num_steps} steps, expected {steps}"
        for name, value in record.tensors.items():
            if name not in reference.tensors:
                yield f"{name}: on rank {record.rank}, but not in one process"
            elif value.shape != reference.tensors[name].shape:
                shapes = f"{tuple(value.shape)}, not {tuple(reference.tensors[name].shape)}"
                yield f"{name}: rank {record.rank} has the shape {shapes}"
    names = {name for record in records for name in record.tensors}
    yield from (f"{name}: on no rank" for name in reference.tensors if name not in names)
    for step, (expected, *theirs) in _losses_by_step(reference, records):
        positions = {position for losses in theirs for position in losses}
        for position in sorted(positions ^ set(expected)):
            subject = "one process never saw the" if position in positions else "no rank saw a"
            yield f"step {step}: {subject} microbatch from sample {position}"


def _worst(figures: Sequence[Largest], tolerance: float) -> Largest:
    """Return the largest difference; NaN is the worst, and no figures at all give NaN."""
    nothing = Largest(math.nan, "nothing that both sides have", 0, tolerance)
    return max(
        figures,
        key=lambda largest: (math.isnan(largest.difference), largest.difference),
        default=nothing,
    )


def _relative(difference: float, size: float) -> float:
    return abs(difference) / size if size > 0 else math.nan


def _size(tensor: Tensor) -> float:
    return float(tensor.abs().max())
