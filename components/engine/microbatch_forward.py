"""Microbatch forward: one microbatch through one stage, whatever calls it, and its seconds.

A rank's own seconds are those that the thread was running on a CPU, and on other devices those
of each microbatch's forward pass by the device's clock: what ranks of a tensor, context or
expert group wait for one another is in it, what pipeline and data ranks wait for is not.
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
from components.distributed.pipeline import Passed
from components.distributed.tensor_styles import stream_seed
from components.model.decoder import Decoder
from components.model.masks import CausalMask
from components.model.mtp import FurtherTokens


class OwnTime:
    """Add up the seconds of computing since they were last taken."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._events: list[tuple[torch.Event, torch.Event]] = []

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Count what is computed inside; the host does not wait for the device."""
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

    def take(self) -> float:
        """Return the seconds so far, and begin anew; a step's end has waited for the device."""
        for before, after in self._events:
            after.synchronize()
            self._seconds += before.elapsed_time(after) / 1_000
        self._events.clear()
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class CountedTargets(NamedTuple):
    """Of a step: which targets count, by microbatch, and all of its targets over these."""

    which: Bool[Tensor, "microbatches sequences length"]
    weight: Float[Tensor, ""]


class StageCompute:
    """Compute microbatches of a recipe on this rank, and keep a step's figures."""

    def __init__(
        self, *, recipe: Recipe, mesh: Mesh, device: torch.device, eod_id: int
    ) -> None:
        self._recipe, self._mesh, self._device = recipe, mesh, device
        self._dtype = compute_dtype(recipe.precision.compute, device)
        self._eod_id = eod_id
        self._part = SequencePart.here(mesh.axis("context"))
        self._step = self._first = self._microbatch = 0
        self.own_time = OwnTime(device)
        self._figures: list[Tensor] = []  # of each microbatch, as `figures_of` has them
        goldfish = recipe.data.goldfish
        self._loss_mask = LossMask(
            one_in=0 if isinstance(goldfish, str) else goldfish.one_in,
            window_tokens=0 if isinstance(goldfish, str) else goldfish.window_tokens,
            after_eod=recipe.data.loss_after_eod,
            padded=recipe.data.packing == "best_fit",
            eod_id=eod_id,
        )
        self._counted: CountedTargets | None = None  # None where all count
        self._further: list[CountedTargets] = []  # of each depth of `mtp`
        # Of each stage's first layer, the sums of the hidden states that it sent on.
        self._outputs: defaultdict[int, list[Tensor]] = defaultdict(list)
        # By microbatch: its rows, their mask, and how many stages have had it.
        self._masks: dict[int, tuple[Tensor, CausalMask, int]] = {}

    def begin(self, step: int, microbatches: int) -> None:
        """Forget the figures of the step before; each data rank has so many microbatches."""
        self._step = step
        self._first = self._mesh.data_rank * microbatches
        self._figures.clear()
        self._outputs.clear()
        self._masks.clear()
        self.own_time.take()  # of evaluations since the last step

    def weigh(self, batch: Tensor) -> None:
        """Find the targets of a step that count, and how many do; all ranks call it.

        ``batch`` is this rank's (microbatches, sequences, length + 1). A token's share of the
        gradient then depends neither on its rank nor on its microbatch.
        """
        depths = range(1, self._recipe.shape.mtp_depth + 1)
        if self._loss_mask.counts_all and not depths:
            return
        counted, documents = self._loss_mask(batch), self._documents(batch)
        which = [counted, *(counted_further(counted, by, documents) for by in depths)]
        numbers = torch.stack([one.sum() for one in (torch.ones_like(counted), *which)])
        # Ranks that have the same rows all count them, which the quotient does not notice.
        total, *kept = sum_over_ranks(numbers)
        weights = (total.double() / count.clamp(min=1) for count in kept)
        found = list(map(CountedTargets, which, weights))
        self._counted = None if self._loss_mask.counts_all else found[0]
        self._further = found[1:]

    def _documents(self, rows: Tensor) -> Tensor | None:
        """Number the documents of what rows read, where attention knows them."""
        if not self._recipe.data.document_mask:
            return None
        return number_documents(rows[..., :-1], self._eod_id)

    def take(self, number: int) -> None:
        """Turn to this rank's microbatch ``number``."""
        self._microbatch = self._first + number

    def __call__(self, decoder: Decoder, inputs: Passed, rows: Tensor, number: int) -> Passed:
        """Take one microbatch through one stage: to hidden states, or what to differentiate.

        Each token of ``rows`` (sequences, length + 1) is predicted from those before it. A
        context rank computes on its part of every row, and its loss is the mean over that. The
        means of losses in which not all targets count are those over the targets that do.
        Routers' sums travel beside hidden states.
        """
        is_last, part = decoder.final_norm is not None, self._part
        self.take(number)
        with self.own_time.measured(), autocast_to(self._dtype, self._device):
            given = inputs[0] if inputs[0].is_floating_point() else part.take(inputs[0])
            counts = self._counted if is_last and decoder.training else None
            further = self._look_further(rows, number) if is_last and decoder.training else []
            result: Tensor = decoder(
                given,
                mask=self._mask(decoder, given, rows, number),
                targets=part.take(rows[:, 1:]) if is_last else None,
                counted=None if counts is None else part.take(counts.which[number]),
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
            tally = take_tally(decoder, carried, self._mesh.axis("context"))
            if not is_last:
                sums = self._outputs[int(next(iter(decoder.layers)))]
                sums.append(result.detach().sum(dtype=torch.float32))
                return (result,) if tally is None else (result, tally.row())
            figures = figures_of(decoder, tally, result, penalty, mtp_loss)
        self._figures.append(figures.detach())
        total = figures[:2].sum()
        if decoder.mtp is not None:
            total = total + decoder.mtp.loss_weight * figures[4]
        return (total,)

    def _look_further(self, rows: Tensor, number: int) -> list[FurtherTokens]:
        """Find what each depth embeds and predicts; behind the end of a row nothing counts."""
        length, take = rows.shape[1] - 1, self._part.take
        longer = F.pad(rows, (0, len(self._further)))
        return [
            FurtherTokens(
                tokens=take(longer[:, by : by + length]),
                targets=take(longer[:, by + 1 : by + 1 + length]),
                counted=take(counts.which[number]),
            )
            for by, counts in enumerate(self._further, start=1)
        ]

    def _loss_further(self, losses: Float[Tensor, " depths"]) -> Float[Tensor, ""]:
        """Average over depths their means over the targets that count."""
        weights = torch.stack([counts.weight for counts in self._further])
        return (losses * weights.to(losses.dtype)).mean()

    def _mask(self, decoder: Decoder, inputs: Tensor, rows: Tensor, number: int) -> CausalMask:
        """Make a microbatch's mask at this rank's first stage, for the others too."""
        degrees = self._recipe.parallelism
        made_of, mask, uses = self._masks.pop(number, (None, None, 0))
        if mask is None or made_of is not rows:
            uses, mask = 0, decoder.mask(inputs, self._documents(rows))
        if degrees.pipeline > 1 and uses + 1 < degrees.stages_per_rank:
            self._masks[number] = rows, mask, uses + 1
        return mask

    @property
    def losses(self) -> Tensor:
        """The losses of the step's microbatches; all context ranks of a sequence must ask."""
        if not self._figures:
            return torch.zeros(0)
        losses = torch.stack([figures[0] for figures in self._figures])
        return mean_over_parts(losses, self._mesh.axis("context"))

    @property
    def unsound_stage(self) -> int | None:
        """The first of this rank's stages whose forward passes were not all finite, if any."""
        stages = self._recipe.stages
        made = {stages[-1][0]: self._figures, **self._outputs}
        begins = [layer for layer, sums in made.items() if not _are_finite(sums)]
        found = (stage for stage, layers in enumerate(stages) if layers[0] in begins)
        return next(found, None)

    def share_of_means(self) -> Tensor:
        """Average the step's figures; over all ranks these shares add up to the mean."""
        if not self._figures:  # only the last stage has some, on all its ranks
            return torch.zeros(5, dtype=torch.float64, device=self._device)
        return torch.stack(self._figures).double().mean(0) / self._mesh.model_ranks

    def dropout_seed(self, part: str) -> int:
        """Draw the same masks whenever this part of the microbatch is computed again.

        A microbatch is known by its number among those of all data ranks, so the degrees of
        data and pipeline do not matter; those of tensor and of context do.
        """
        place = (self._recipe.budget.seed, self._step, self._microbatch, part)
        seed = int.from_bytes(blake2b(repr(place).encode(), digest_size=7).digest())
        context = self._mesh.axis("context")  # each rank drops of its own tokens
        seed = stream_seed(seed, context, sequence_parallel=context.size() > 1)
        sliced = self._recipe.parallelism.sequence_parallel
        return stream_seed(seed, self._mesh.axis("tensor"), sequence_parallel=sliced)


def _are_finite(sums: Iterable[Tensor]) -> bool:
    return all(torch.isfinite(one).all() for one in sums)


def number_documents(tokens: Tensor, eod_id: int) -> Tensor:
    """Number the document of each token: (..., sequences, length)."""
    ends = (tokens == eod_id).int()
    return ends.cumsum(-1) - ends  # an end of document belongs to what it ends


def autocast_to(dtype: torch.dtype, device: torch.device) -> torch.autocast:
    """Compute in the recipe's dtype; a cache would hold casts of layers to be recomputed."""
    exact = dtype in {torch.float32, torch.float64}
    low = torch.bfloat16 if exact else dtype
    return torch.autocast(device.type, low, enabled=not exact, cache_enabled=False)
