"""Microbatch forward: one microbatch through one stage, and its compute seconds.

They are CPU time of the thread on a CPU, else the device's time in forward passes. Waits in
tensor, context or expert groups count, waits for pipeline or data ranks do not.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from components.config.recipe import Recipe
from components.data.samples import LossMask, counted_further
from components.distributed.context import SequencePart, mean_over_parts
from components.distributed.devices import compute_dtype
from components.distributed.experts import figures_of, take_tally
from components.distributed.mesh import Mesh, sum_over_ranks
from components.distributed.pipeline import StageOutput
from components.distributed.tensor_styles import stream_seed
from components.model.decoder import Decoder
from components.model.masks import CausalMask
from components.model.mtp import MTPTargets


class ComputeTimer:
    """Timer that sums compute seconds since the last `take`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._events: list[tuple[torch.Event, torch.Event]] = []

    @contextmanager
    def measure_time(self) -> Iterator[None]:
        """Time the computation in the context; the host does not wait for the device."""
        if self._device.type == "cpu":
            began = time.thread_time()
            yield
            self._seconds += time.thread_time() - began
            return
        before, after = (torch.Event(self._device, enable_timing=True) for _ in range(2))
        before.record()
        yield
        after.record()
        self._events.append((before, after))

    def take_seconds(self) -> float:
        """Return the seconds and reset them; the step's end already waited for the device."""
        for before, after in self._events:
            after.synchronize()
            self._seconds += before.elapsed_time(after) / 1_000
        self._events.clear()
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class CountedTargets(NamedTuple):
    """Counted targets of a step: a mask per microbatch, and all targets / counted targets."""

    which: Bool[Tensor, "microbatches sequences length"]
    weight: Float[Tensor, ""]


class StageForward:
    """Forward pass of this rank's microbatches; it stores the figures of a step."""

    def __init__(
        self, *, recipe: Recipe, mesh: Mesh, device: torch.device, eod_id: int
    ) -> None:
        self._recipe, self._mesh, self._device = recipe, mesh, device
        self._dtype = compute_dtype(recipe.precision.compute, device)
        self._eod_id = eod_id
        self._part = SequencePart.from_mesh(mesh.get_axis("context"))
        self._step = self._first = self._microbatch = 0
        self.compute_timer = ComputeTimer(device)
        self._figures: list[Tensor] = []  # per microbatch, from `figures_of`
        goldfish = recipe.data.goldfish
        self._loss_mask = LossMask(
            one_in=0 if isinstance(goldfish, str) else goldfish.one_in,
            window_tokens=0 if isinstance(goldfish, str) else goldfish.window_tokens,
            after_eod=recipe.data.loss_after_eod,
            padded=recipe.data.packing == "best_fit",
            eod_id=eod_id,
        )
        self._counted: CountedTargets | None = None  # None if all targets count
        self._further: list[CountedTargets] = []  # per depth of `mtp`
        # A stage's first layer -> the sums of the hidden states that the stage sent.
        self._outputs: defaultdict[int, list[Tensor]] = defaultdict(list)
        # Microbatch -> its rows, their mask, and the number of stages that used the mask.
        self._masks: dict[int, tuple[Tensor, CausalMask, int]] = {}

    def start_step(self, step: int, microbatches: int) -> None:
        """Clear the previous step's figures; each data rank has ``microbatches``."""
        self._step = step
        self._first = self._mesh.data_rank * microbatches
        self._figures.clear()
        self._outputs.clear()
        self._masks.clear()
        self.compute_timer.take_seconds()  # of evaluations since the last step

    def count_targets(self, batch: Tensor) -> None:
        """Find the targets of a step that count, and their weight; all ranks call this.

        ``batch`` is this rank's (microbatches, sequences, length + 1). A token's share of the
        gradient then depends neither on its rank nor on its microbatch.
        """
        depths = range(1, self._recipe.decoder_spec.mtp_depth + 1)
        if self._loss_mask.counts_all and not depths:
            return
        counted, documents = self._loss_mask(batch), self._documents(batch)
        which = [counted, *(counted_further(counted, by, documents) for by in depths)]
        numbers = torch.stack([mask.sum() for mask in (torch.ones_like(counted), *which)])
        # Ranks with the same rows all count them. The quotient stays the same.
        total, *target_counts = sum_over_ranks(numbers)
        weights = (total.double() / count.clamp(min=1) for count in target_counts)
        counted_targets = list(map(CountedTargets, which, weights))
        self._counted = None if self._loss_mask.counts_all else counted_targets[0]
        self._further = counted_targets[1:]

    def _documents(self, rows: Tensor) -> Tensor | None:
        """Return the document numbers of the input tokens; None without a document mask."""
        if not self._recipe.data.document_mask:
            return None
        return number_documents(rows[..., :-1], self._eod_id)

    def select_microbatch(self, number: int) -> None:
        """Set the current microbatch to this rank's ``number``."""
        self._microbatch = self._first + number

    def __call__(
        self, decoder: Decoder, inputs: StageOutput, rows: Tensor, number: int
    ) -> StageOutput:
        """Run one microbatch through one stage; return hidden states, or the total loss.

        The stage predicts each token of ``rows`` (sequences, length + 1) from the tokens before
        it. A context rank computes on its part of every row, and its loss is the mean over that
        part. Means are over the targets that count. The routers' sums follow the hidden states.
        """
        is_last, part = decoder.final_norm is not None, self._part
        self.select_microbatch(number)
        with self.compute_timer.measure_time(), autocast_to(self._dtype, self._device):
            stage_input = (
                inputs[0] if inputs[0].is_floating_point() else part.select_rows(inputs[0])
            )
            counts = self._counted if is_last and decoder.training else None
            further = self._look_further(rows, number) if is_last and decoder.training else []
            result: Tensor = decoder(
                stage_input,
                mask=self._mask(decoder, stage_input, rows, number),
                targets=part.select_rows(rows[:, 1:]) if is_last else None,
                counted=None if counts is None else part.select_rows(counts.which[number]),
                further=further,
            )
            mtp_loss = self._loss_further(result[1:]) if further else None
            result = result[0] if further else result
            penalty = decoder.readout.penalty if is_last else None
            if counts is not None:
                weight = counts.weight.to(result.dtype)
                result, penalty = result * weight, None if penalty is None else penalty * weight
            if not decoder.training:
                return (result,)
            carried = inputs[1] if len(inputs) > 1 else None
            tally = take_tally(decoder, carried, self._mesh.get_axis("context"))
            if not is_last:
                sums = self._outputs[int(next(iter(decoder.layers)))]
                sums.append(result.detach().sum(dtype=torch.float32))
                return (result,) if tally is None else (result, tally.to_row())
            figures = figures_of(decoder, tally, result, penalty, mtp_loss)
        self._figures.append(figures.detach())
        total = figures[:2].sum()
        if decoder.mtp is not None:
            total = total + decoder.mtp.loss_weight * figures[4]
        return (total,)

    def _look_further(self, rows: Tensor, number: int) -> list[MTPTargets]:
        """Return each depth's tokens and targets; targets after a row's end do not count."""
        length, take = rows.shape[1] - 1, self._part.select_rows
        longer = F.pad(rows, (0, len(self._further)))
        return [
            MTPTargets(
                tokens=take(longer[:, by : by + length]),
                targets=take(longer[:, by + 1 : by + 1 + length]),
                counted=take(counts.which[number]),
            )
            for by, counts in enumerate(self._further, start=1)
        ]

    def _loss_further(self, losses: Float[Tensor, " depths"]) -> Float[Tensor, ""]:
        """Return the mean over depths of each depth's mean over the targets that count."""
        weights = torch.stack([counts.weight for counts in self._further])
        return (losses * weights.to(losses.dtype)).mean()

    def _mask(self, decoder: Decoder, inputs: Tensor, rows: Tensor, number: int) -> CausalMask:
        """Return a microbatch's mask, made at this rank's first stage; the others reuse it."""
        degrees = self._recipe.parallelism
        made_of, mask, uses = self._masks.pop(number, (None, None, 0))
        if mask is None or made_of is not rows:
            uses, mask = 0, decoder.build_mask(inputs, self._documents(rows))
        if degrees.pipeline > 1 and uses + 1 < degrees.stages_per_rank:
            self._masks[number] = rows, mask, uses + 1
        return mask

    @property
    def microbatch_losses(self) -> Tensor:
        """Losses of the step's microbatches; all context ranks of a sequence must read this."""
        if not self._figures:
            return torch.zeros(0)
        losses = torch.stack([figures[0] for figures in self._figures])
        return mean_over_parts(losses, self._mesh.get_axis("context"))

    @property
    def nonfinite_stage(self) -> int | None:
        """First of this rank's stages with a non-finite forward pass, or None."""
        stages = self._recipe.stage_layers
        sums_by_layer = {stages[-1][0]: self._figures, **self._outputs}
        nonfinite = [layer for layer, sums in sums_by_layer.items() if not _are_finite(sums)]
        nonfinite_stages = (
            stage for stage, layers in enumerate(stages) if layers[0] in nonfinite
        )
        return next(nonfinite_stages, None)

    def share_of_means(self) -> Tensor:
        """Return this rank's share of the step's mean figures; all shares sum to the mean."""
        if not self._figures:  # only the ranks of the last stage have figures
            return torch.zeros(5, dtype=torch.float64, device=self._device)
        return torch.stack(self._figures).double().mean(0) / self._mesh.model_ranks

    def dropout_seed(self, part: str) -> int:
        """Return the dropout seed of a part, the same when the part is recomputed.

        It depends on tensor and context degrees, but not on data and pipeline degrees.
        """
        place = (self._recipe.budget.seed, self._step, self._microbatch, part)
        seed = int.from_bytes(blake2b(repr(place).encode(), digest_size=7).digest())
        context = self._mesh.get_axis("context")  # each rank has its own tokens
        seed = stream_seed(seed, context, sequence_parallel=context.size() > 1)
        sliced = self._recipe.parallelism.sequence_parallel
        return stream_seed(seed, self._mesh.get_axis("tensor"), sequence_parallel=sliced)


def _are_finite(sums: Iterable[Tensor]) -> bool:
    return all(torch.isfinite(total).all() for total in sums)


def number_documents(tokens: Tensor, eod_id: int) -> Tensor:
    """Return the document number of each token: (..., sequences, length)."""
    ends = (tokens == eod_id).int()
    return ends.cumsum(-1) - ends  # an end-of-document token belongs to the document it ends


def autocast_to(dtype: torch.dtype, device: torch.device) -> torch.autocast:
    """Return autocast to ``dtype``; a cache would keep casts of layers to be recomputed."""
    exact = dtype in {torch.float32, torch.float64}
    low = torch.bfloat16 if exact else dtype
    return torch.autocast(device.type, low, enabled=not exact, cache_enabled=False)
