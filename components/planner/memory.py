"""Peak memory of each pipeline rank, by part, and whether it fits the device.

The peak is the higher of two moments: the backward pass, with states, activations and logits,
and the optimizer's step, with states and its own temporary copies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from components.config.schema.cluster import Hardware
from components.planner import states
from components.planner.activations import layer_bytes_per_token, microbatches_kept
from components.planner.job import BYTES, TrainingJob
from components.planner.software import SoftwareMemory
from components.planner.states import DeviceParameters, States, UpdateBytes

GIB = 2**30
Verdict = Literal["fits", "tight", "does_not_fit"]
# Of seven reserved peaks of the released layouts, six exceed the prediction by less than this.
TIGHT_FRACTION = 0.9


class Moments(NamedTuple):
    """Bytes that come and go, gradients too: at most in the passes, and in the update."""

    passes: float
    update: float


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bytes at the peak of one pipeline rank, by part.

    ``earlier_gradients`` are those that are there while activations are, ``update`` has those
    that the optimizer reads.
    """

    states: States
    earlier_gradients: float
    casts: float
    activations: float
    loss: float
    buffers: float
    update: UpdateBytes
    base: float

    @property
    def moments(self) -> Moments:
        made = self.casts + self.activations + self.loss + self.buffers
        return Moments(made + self.earlier_gradients, sum(self.update))

    @property
    def peak(self) -> float:
        stays = self.states.total - self.states.gradients + self.base
        return stays + max(self.moments)

    def parts(self) -> dict[str, int]:
        """Name each part, in bytes, as it is at the peak: they add up to it."""
        in_passes = float(self.moments.passes >= self.moments.update)
        gradients = self.earlier_gradients if in_passes else self.update.gradients
        passing = ("casts", "activations", "loss", "buffers")
        sizes = {
            **self.states._replace(gradients=gradients)._asdict(),
            **{name: in_passes * getattr(self, name) for name in passing},
            "step": (1 - in_passes) * self.update.step,
            "base": self.base,
            "peak": self.peak,
        }
        return {f"{name}_bytes": round(size) for name, size in sizes.items()}


@dataclass(frozen=True, kw_only=True)
class Memory:
    """All pipeline ranks of one run on one kind of device."""

    ranks: tuple[RankMemory, ...]
    usable_bytes: int

    @property
    def peak(self) -> float:
        """Bytes of the fullest rank."""
        return max(rank.peak for rank in self.ranks)

    @property
    def peak_bytes(self) -> int:
        return round(self.peak)

    @property
    def by_stage(self) -> tuple[dict[str, int], ...]:
        """The parts of each pipeline rank."""
        return tuple(rank.parts() for rank in self.ranks)

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.peak, self.usable_bytes)


def verdict_of(peak_bytes: float, usable_bytes: int) -> Verdict:
    """Judge a peak; ``tight`` is closer to the limit than the prediction is to the truth."""
    if peak_bytes > usable_bytes:
        return "does_not_fit"
    return "fits" if peak_bytes <= TIGHT_FRACTION * usable_bytes else "tight"


def plan_memory(job: TrainingJob, hardware: Hardware, software: SoftwareMemory) -> Memory:
    """Predict the peak of each pipeline rank."""
    ranks = tuple(rank_memory(job, rank, software) for rank in range(job.layout.pipeline))
    return Memory(ranks=ranks, usable_bytes=usable_bytes(hardware))


def usable_bytes(hardware: Hardware) -> int:
    """Return what tensors can have: the measured figure, or all but the runtime's context."""
    if hardware.usable_bytes is not None:
        return hardware.usable_bytes
    return hardware.memory_bytes - (hardware.context_bytes or 0)


def rank_memory(job: TrainingJob, rank: int, software: SoftwareMemory) -> RankMemory:
    """Add up the stages that one pipeline rank holds."""
    parameters = states.rank_parameters(job, rank)
    held = states.states(job, parameters)
    return RankMemory(
        **_passes(job, rank, parameters, software),
        states=held,
        earlier_gradients=states.earlier_gradients(job, held, software),
        update=states.update_bytes(job, parameters, software),
        base=software.base_bytes,
    )


def deciding_ranks(job: TrainingJob) -> tuple[int, ...]:
    """Choose pipeline ranks that include the fullest one: of equal ranks the fullest."""
    return tuple(fullest_of(job, ranks) for ranks in job.equal_ranks)


def fullest_of(job: TrainingJob, ranks: Sequence[int]) -> int:
    """Choose of equal ranks the one with most microbatches in flight.

    It is the first, but in a V the last (`activations.microbatches_kept`).
    """
    return ranks[-1 if job.placement.style == "v" else 0]


def _passes(
    job: TrainingJob, rank: int, parameters: DeviceParameters, software: SoftwareMemory
) -> dict[str, float]:
    layers, pipelined = job.layers_of(rank), job.layout.pipeline > 1
    has_head = job.has_head(rank)
    casts = _casts(job, rank, parameters)
    activations = _activations(job, rank, software)
    tensors = software.gathered_tensors_in_pipelines if pipelined else software.gathered_tensors
    gathered = tensors * 2 * job.microbatch_tokens * job.shape.dim
    buffers = gathered if job.layout.tensor > 1 else 0.0
    buffers += states.bucket_bytes(job, parameters) + _gathered_layers(job, parameters, layers)
    if software.own_gradients:
        buffers += _gradient(job, rank, layers, casts + activations)
    return {
        "casts": casts,
        "activations": activations * software.fragmentation,
        "loss": _loss(job, software) if has_head else 0.0,
        "buffers": buffers,
    }


def _casts(job: TrainingJob, rank: int, parameters: DeviceParameters) -> float:
    """Count cast weights that graphs in flight keep; a layer that is recomputed keeps none.

    Embeddings are looked up as they are, and the loss forgets its cast of the head.
    """
    attention = job.shape.attention.parameters(job.shape.dim) / job.shape.layer_parameters
    dropped = {"attention": attention, "mlp": 1 - attention}
    parts = job.layout.recompute if isinstance(job.layout.recompute, tuple) else ()
    forgotten = sum(dropped.get(part, 0.0) for part in parts)
    if job.layout.recompute in {"selective", "full"}:
        forgotten = 1.0
    layers = job.layers_of(rank)
    kept = 1 - forgotten * job.recomputed_of(rank) / max(layers, 1)
    total = parameters.dense - parameters.ends + parameters.expert
    return total * kept * job.cast_bytes * microbatches_kept(job, rank)


def _gathered_layers(job: TrainingJob, parameters: DeviceParameters, layers: int) -> float:
    """Count what ZeRO 3 has gathered and not yet scattered (`torch.distributed.fsdp`).

    The weights of two layers, the last layer and the ends, and the gradients of one layer, once
    more as they are sent.
    """
    if job.layout.zero < 3 or not layers or not job.shard_gradient_bytes:
        return 0.0
    layer_weights = (parameters.dense - parameters.ends + parameters.expert) / layers
    weights = min(3, layers) * layer_weights + parameters.ends
    return weights * job.gather_bytes + layer_weights * (job.gather_bytes + job.reduce_bytes)


def _activations(job: TrainingJob, rank: int, software: SoftwareMemory) -> float:
    layout, gathered = job.layout, 0.0
    # Torch's compiler never repeats a collective by itself.
    if (software.keeps_gathered or job.layout.compile != "none") and layout.sequence_parallel:
        # Of its blocks' gathered inputs what is beyond this rank's slice.
        gathered = 2 * 2.0 * job.shape.dim * (1 - 1 / layout.tensor)
    microbatches = microbatches_kept(job, rank)
    kept = beside = 0.0
    for kind, layers, recomputed in job.layer_kinds(job.stages_of(rank)):
        again = recomputed if job.layout.recompute != "none" else 0
        whole = layer_bytes_per_token(kind, "none") + gathered
        a_layer = layer_bytes_per_token(kind)
        a_layer += gathered * (job.layout.recompute in {"none", "selective"})
        kept += ((layers - again) * whole + again * a_layer) * microbatches
        beside = max(beside, whole - a_layer if again else 0.0)
    kept += beside  # one layer at a time is gone through again
    if rank + 1 < layout.pipeline or job.placement.stages_per_rank > 1:
        hidden = 2.0 * job.shape.dim / (layout.tensor if layout.sequence_parallel else 1)
        kept += software.stage_outputs * hidden * microbatches * job.placement.stages_per_rank
    if job.has_head(rank):
        # What goes into three norms, and both vectors in one.
        vectors = job.mtp_depth * 5 * 2.0 * job.shape.dim
        kept += vectors * microbatches / (layout.tensor if layout.sequence_parallel else 1)
    return kept * job.microbatch_tokens


def _loss(job: TrainingJob, software: SoftwareMemory) -> float:
    """Count the logits that exist at once: 2205.05198, section 4.3, has all at 4 bytes."""
    rows = job.shape.padded_vocab_size / job.layout.tensor
    block = min(job.microbatch_tokens, software.block_tokens)
    block_bytes = block * BYTES[job.compute]
    if job.shape.logit_cap is not None:  # the derivative beside
        block_bytes *= 2
    if job.shape.z_loss:  # some of them in float32
        block_bytes += min(4 * block, 2**26 / rows)
    logits = rows * (job.microbatch_tokens * software.logit_bytes + block_bytes)
    # A float32 sum; first beside the cast weight, then what it is rounded to for a narrow one.
    each = 4 + max(job.cast_bytes, job.gather_bytes % 4)
    each += 4 * job.mtp_depth  # until the backward pass has taken one after the other
    return logits + software.own_gradients * rows * job.shape.dim * each


def _gradient(job: TrainingJob, rank: int, layers: int, kept: float) -> float:
    """Count the largest gradient that is there beside the sum that it is added to.

    Within the layers, while all that is ``kept`` of microbatches is there; the embedding's once
    a microbatch has freed its own part.
    """
    within = states.largest_in_layer(job) * (job.cast_bytes + job.gather_bytes) * (layers > 0)
    if rank:
        return within
    freed = kept / microbatches_kept(job, rank)
    return max(within, states.end_matrix(job) * job.gather_bytes - freed)
