"""Compare what the ranks of a layout recorded with what one process recorded."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load_file
from torch import Tensor

# Float64 carries 16 digits. A sum of thousands of terms in another order keeps 13 or more; ten
# steps of Adam, which divides by roots of tiny squares, keep 9 or more of the weights.
LOSS_TOLERANCE = 1e-10
TENSOR_TOLERANCE = 1e-8
# A gradient that is 0 by its mathematics (a bias of keys, which the softmax cancels) is nothing
# but rounding. Below this part of the model's largest gradient none is measured by itself.
_SMALLEST_GRADIENT = 1e-6

Losses = dict[int, float]  # of one step, by the position of a microbatch's first sample


class Tolerances(NamedTuple):
    """The largest relative differences that are rounding."""

    loss: float
    tensor: float
    weight: float


DOUBLE = Tolerances(loss=LOSS_TOLERANCE, tensor=TENSOR_TOLERANCE, weight=TENSOR_TOLERANCE)
# Float32 carries 7 digits: the same sums keep 6 of a loss and 5 of a gradient's largest number.
# Adam moves a weight whose gradient is only rounding as far as any other.
SINGLE = Tolerances(loss=1e-6, tensor=1e-5, weight=1e-3)


class Largest(NamedTuple):
    """The largest relative difference of a kind, where and on whose rank, what is allowed."""

    difference: float
    where: str
    rank: int
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.difference <= self.tolerance  # never for NaN


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The largest differences, and what one side lacks."""

    loss: Largest
    gradient_norm: Largest
    gradient: Largest
    weight: Largest
    lacking: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.lacking and all(largest.holds for largest in self.parts.values())

    @property
    def parts(self) -> dict[str, Largest]:
        """Name what is compared, as a reader of the table knows it."""
        names = ("loss", "gradient_norm", "gradient", "weight")
        return {name.replace("_", " "): getattr(self, name) for name in names}

    @property
    def problems(self) -> list[str]:
        """Describe what does not hold, with the parameter's or the microbatch's name.

        Differences that are NaN are left out where a loss that is not finite explains them.
        """
        return [*self.lacking] + [
            f"{kind} of {part.where}, rank {part.rank}: differs by {part.difference:.2e}, "
            f"allowed is {part.tolerance:.0e}"
            for kind, part in self.parts.items()
            if not (part.holds or (self.lacking and math.isnan(part.difference)))
        ]


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """What one rank saw: losses by step and position, norms and rates by step, tensors."""

    rank: int
    losses: list[Losses]
    gradient_norms: list[float]
    rates: list[float]
    tensors: Mapping[str, Tensor]


def _read_number(value: float | None) -> float:
    """Return NaN for null, which was written for a number that is not finite."""
    return math.nan if value is None else value


def read_records(folder: Path, ranks: int) -> list[RankRecord]:
    """Load what the ranks of one run wrote."""
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


def compare(
    reference: RankRecord, records: Sequence[RankRecord], tolerances: Tolerances = DOUBLE
) -> Comparison:
    """Hold every rank's record against the one process's."""
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
    """Compare microbatch by microbatch; name the first that differs, else the worst."""
    found = [
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
    first = next((largest for largest in found if not largest.holds), None)
    worst = _worst(found, tolerances.loss)
    return worst if first is None else first._replace(difference=worst.difference)


def _losses_by_step(
    reference: RankRecord, records: Sequence[RankRecord]
) -> Iterator[tuple[int, tuple[Losses, ...]]]:
    """Count the steps that all took, from 1: losses of the one process, then of ranks."""
    return enumerate(zip(*(side.losses for side in (reference, *records)), strict=False), 1)


def _compare_tensors(
    reference: RankRecord, records: Sequence[RankRecord], kind: str, allowed: float
) -> Largest:
    """Compare each rank's tensors of a kind, relative to the parameter's largest value.

    A weight is never measured by less than the distance that ten steps can move it: one that
    started at 0 and has no gradient holds nothing but rounding, which Adam's division enlarges.
    """
    sizes = [_size(value) for name, value in reference.tensors.items() if name.startswith(kind)]
    least = sum(reference.rates) if kind == "weight" else _SMALLEST_GRADIENT * max(sizes)
    found = [
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
    return _worst(found, allowed)


def _diverged(reference: RankRecord, records: Sequence[RankRecord]) -> list[str]:
    """Name the first step on the first side whose figures are not finite."""
    sides = {"one process": reference, **{f"rank {x.rank}": x for x in records}}
    found = [
        f"{name}: the loss or gradient norm of step {step} is not finite: the run diverged, "
        "and nothing can be compared"
        for name, side in sides.items()
        for step, (losses, norm) in enumerate(
            zip(side.losses, side.gradient_norms, strict=False), 1
        )
        if not all(map(math.isfinite, (norm, *losses.values())))
    ]
    return found[:1]


def _lacking(reference: RankRecord, records: Sequence[RankRecord]) -> Iterator[str]:
    """Give which tensors, steps and microbatches only one side has, and which shapes differ."""
    for record in records:
        taken, steps = len(record.losses), len(reference.losses)
        if taken != steps:
            yield f"rank {record.rank} took {taken} steps, not {steps}"
        for name, value in record.tensors.items():
            if name not in reference.tensors:
                yield f"{name}: rank {record.rank} has it, one process does not"
            elif value.shape != reference.tensors[name].shape:
                shapes = f"{tuple(value.shape)}, not {tuple(reference.tensors[name].shape)}"
                yield f"{name}: rank {record.rank} has the shape {shapes}"
    held = {name for record in records for name in record.tensors}
    yield from (f"{name}: no rank has it" for name in reference.tensors if name not in held)
    for step, (expected, *theirs) in _losses_by_step(reference, records):
        seen = {position for losses in theirs for position in losses}
        for position in sorted(seen ^ set(expected)):
            who = "one process never saw the" if position in seen else "no rank saw a"
            yield f"step {step}: {who} microbatch from sample {position}"


def _worst(found: Sequence[Largest], tolerance: float) -> Largest:
    """Choose the largest; NaN is worse than any number, and nothing at all is NaN."""
    nothing = Largest(math.nan, "nothing that both sides have", 0, tolerance)
    return max(
        found, key=lambda one: (math.isnan(one.difference), one.difference), default=nothing
    )


def _relative(difference: float, size: float) -> float:
    return abs(difference) / size if size > 0 else math.nan


def _size(tensor: Tensor) -> float:
    return float(tensor.abs().max())
