"""Peak memory of each pipeline rank by part, and whether it fits the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import pow
from typing import Literal

from components.config.model_spec.decoder import DecoderSpec
from components.config.schema.cluster import Hardware
from components.planner import states
from components.planner.activations import count_stored_microbatches, layer_bytes_per_token
from components.planner.job import BYTES, TrainingJob
from components.planner.software import SoftwareMemory
from components.planner.states import DeviceParameters, States, UpdateBytes

GIB = 2**30
Verdict = Literal["fits", "tight", "does_not_fit"]
# Six of seven reserved peaks of the released layouts exceed the prediction by less than this.
TIGHT_FRACTION = 0.9
# Half of the layouts planned at EVEN_FRACTION of the usable memory ran; the odds are a power of
# the fraction. Fitted to rows of benchmarks.planning.error_classes, planned between 0.7 and 1.3
# of the usable memory. Below a tenth, the verdict is does_not_fit.
EVEN_FRACTION, ODDS_POWER, LEAST_PROBABILITY = 0.96, 15.6, 0.1


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Peak bytes of one pipeline rank, by part.

    ``earlier_gradients`` are the gradients that exist together with activations. ``update``
    includes the gradients that the optimizer reads.
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
    def pass_bytes(self) -> float:
        """Temporary bytes of the passes, including gradients; ``update`` has the update's."""
        return self.casts + self.activations + self.loss + self.buffers + self.earlier_gradients

    @property
    def peak_bytes(self) -> float:
        stays = self.states.total_bytes - self.states.gradients + self.base
        return stays + max(self.pass_bytes, sum(self.update))

    def bytes_by_part(self) -> dict[str, int]:
        """Return the bytes of each part at the peak. The parts sum to the peak."""
        in_passes = float(self.pass_bytes >= sum(self.update))
        gradients = self.earlier_gradients if in_passes else self.update.gradients
        passing = ("casts", "activations", "loss", "buffers")
        sizes = {
            **self.states._replace(gradients=gradients)._asdict(),
            **{name: in_passes * getattr(self, name) for name in passing},
            "step": (1 - in_passes) * self.update.step,
            "base": self.base,
            "peak": self.peak_bytes,
        }
        return {f"{name}_bytes": round(size) for name, size in sizes.items()}


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of all pipeline ranks of one run on one kind of device."""

    ranks: tuple[RankMemory, ...]
    usable_bytes: int

    @property
    def fullest_rank_bytes(self) -> float:
        """Bytes of the fullest rank."""
        return max(rank.peak_bytes for rank in self.ranks)

    @property
    def peak_bytes(self) -> int:
        return round(self.fullest_rank_bytes)

    @property
    def by_stage(self) -> tuple[dict[str, int], ...]:
        """Bytes by part of each pipeline rank."""
        return tuple(rank.bytes_by_part() for rank in self.ranks)

    @property
    def memory_verdict(self) -> Verdict:
        """Verdict with the planner's errors: a peak slightly above the limit is ``tight``."""
        verdict = verdict_of(self.fullest_rank_bytes, self.usable_bytes)
        near = verdict == "does_not_fit" and self.fit_probability >= LEAST_PROBABILITY
        return "tight" if near else verdict

    @property
    def is_within_limit(self) -> bool:
        """Whether the planned peak is at most the usable memory."""
        return self.fullest_rank_bytes <= self.usable_bytes

    @property
    def fit_probability(self) -> float:
        """Probability that a run does not go out of memory, from past errors."""
        fraction = self.fullest_rank_bytes / self.usable_bytes / EVEN_FRACTION
        return 1 / (1 + pow(min(fraction, 2.0), ODDS_POWER))


def verdict_of(peak_bytes: float, usable_bytes: int) -> Verdict:
    """Classify a peak. ``tight`` is below the limit, closer than the error of a prediction."""
    if peak_bytes > usable_bytes:
        return "does_not_fit"
    return "fits" if peak_bytes <= TIGHT_FRACTION * usable_bytes else "tight"


def plan_memory(job: TrainingJob, hardware: Hardware, software: SoftwareMemory) -> Memory:
    """Predict the peak of each pipeline rank."""
    ranks = tuple(rank_memory(job, rank, software) for rank in range(job.layout.pipeline))
    return Memory(ranks=ranks, usable_bytes=usable_bytes(hardware))


def usable_bytes(hardware: Hardware) -> int:
    """Return the bytes available to tensors: measured, or all minus the runtime context."""
    if hardware.usable_bytes is not None:
        return hardware.usable_bytes
    return hardware.memory_bytes - (hardware.context_bytes or 0)


def rank_memory(job: TrainingJob, rank: int, software: SoftwareMemory) -> RankMemory:
    """Sum the memory of the stages on one pipeline rank."""
    parameters = states.rank_parameters(job, rank)
    model_states = states.compute_states(job, parameters)
    return RankMemory(
        **_passes(job, rank, parameters, software),
        states=model_states,
        earlier_gradients=states.earlier_gradients(job, model_states, software),
        update=states.update_bytes(job, rank, parameters, software),
        base=software.base_bytes,
    )


def deciding_ranks(job: TrainingJob) -> tuple[int, ...]:
    """Return pipeline ranks that include the fullest rank: the fullest of each equal group."""
    return tuple(fullest_of(job, ranks) for ranks in job.equal_ranks)


def fullest_of(job: TrainingJob, ranks: Sequence[int]) -> int:
    """Return the equal rank with most in flight: the first, in V schedules the last."""
    return ranks[-1 if job.stage_placement.style == "v" else 0]


def _passes(
    job: TrainingJob, rank: int, parameters: DeviceParameters, software: SoftwareMemory
) -> dict[str, float]:
    layers, pipelined = job.layers_of(rank), job.layout.pipeline > 1
    casts = _casts(job, rank, parameters)
    stored, recomputed = _activations(job, rank, software)
    tensors = software.gathered_tensors_in_pipelines if pipelined else software.gathered_tensors
    gathered = tensors * 2 * job.microbatch_tokens * job.shape.dim
    buffers = gathered if job.layout.tensor > 1 else 0.0
    weights, gradients = _gathered_layers(job, parameters, layers)
    buffers += states.bucket_bytes(job, parameters) + weights
    if software.own_gradients:
        gradients += _gradient(job, rank, layers, casts + stored + recomputed)
    loss = _loss(job, software) if job.has_head(rank) else 0.0
    # The loss frees its tensors before the backward pass of the last layer begins.
    if loss >= recomputed + gradients:
        recomputed = gradients = 0.0
    else:
        loss = 0.0
    return {
        "casts": casts,
        "activations": (stored + recomputed) * software.fragmentation,
        "loss": loss,
        "buffers": buffers + gradients,
    }


def _casts(job: TrainingJob, rank: int, parameters: DeviceParameters) -> float:
    """Count the bytes of cast weights in live graphs. A recomputed layer keeps none.

    Embeddings are read without a cast, and the loss drops its cast of the head.
    """
    attention = _mixing_share(job.shape)
    dropped = {"attention": attention, "mlp": 1 - attention}
    parts = job.layout.recompute if isinstance(job.layout.recompute, tuple) else ()
    forgotten = sum(dropped.get(part, 0.0) for part in parts)
    if job.layout.recompute in {"selective", "full"}:
        forgotten = 1.0
    layers = job.layers_of(rank)
    remaining = 1 - forgotten * job.recomputed_of(rank) / max(layers, 1)
    total = parameters.dense - parameters.ends + parameters.expert
    return total * remaining * job.cast_bytes * count_stored_microbatches(job, rank)


def _mixing_share(shape: DecoderSpec) -> float:
    """Return the share of attention and linear mixers in the parameters of layers."""
    if shape.pattern is None:
        return shape.mixing_parameters / shape.layer_parameters
    mixing = shape.over_layers(lambda layer: layer.mixing_parameters)
    return mixing / shape.over_layers(lambda layer: layer.layer_parameters)


def _gathered_layers(
    job: TrainingJob, parameters: DeviceParameters, layers: int
) -> tuple[float, float]:
    """Count the bytes of gathered weights, and of unscattered gradients, of ZeRO 3.

    See `torch.distributed.fsdp`: the weights of two layers, of the last layer and of the
    embedding and head; the gradients of one layer, plus a copy of them that is being sent.
    """
    if job.layout.zero < 3 or not layers or not job.shard_gradient_bytes:
        return 0.0, 0.0
    layer_weights = (parameters.dense - parameters.ends + parameters.expert) / layers
    weights = min(3, layers) * layer_weights + parameters.ends
    gradients = layer_weights * (job.gather_bytes + job.reduce_bytes)
    return weights * job.gather_bytes, gradients


def _activations(job: TrainingJob, rank: int, software: SoftwareMemory) -> tuple[float, float]:
    """Count the bytes of kept activations, and of the layer that is being recomputed."""
    layout, gathered = job.layout, 0.0
    # Torch's compiler does not repeat collectives on its own.
    if (software.keeps_gathered or job.layout.compile != "none") and layout.sequence_parallel:
        # The blocks' gathered inputs, minus this rank's slice.
        gathered = 2 * 2.0 * job.shape.dim * (1 - 1 / layout.tensor)
    microbatches = count_stored_microbatches(job, rank)
    per_token = extra = 0.0
    for kind, layers, recomputed in job.layer_kinds(job.stages_of(rank)):
        again = recomputed if job.layout.recompute != "none" else 0
        whole = layer_bytes_per_token(kind, "none") + gathered
        layer = layer_bytes_per_token(kind)
        layer += gathered * (job.layout.recompute in {"none", "selective"})
        per_token += ((layers - again) * whole + again * layer) * microbatches
        extra = max(extra, whole - layer if again else 0.0)
    if rank + 1 < layout.pipeline or job.stage_placement.stages_per_rank > 1:
        hidden = 2.0 * job.shape.dim / (layout.tensor if layout.sequence_parallel else 1)
        per_token += (
            software.stage_outputs * hidden * microbatches * job.stage_placement.stages_per_rank
        )
    if job.has_head(rank):
        # The inputs of three norms, and both vectors in one.
        vectors = job.mtp_depth * 5 * 2.0 * job.shape.dim
        per_token += vectors * microbatches / (layout.tensor if layout.sequence_parallel else 1)
    return per_token * job.microbatch_tokens, extra * job.microbatch_tokens


def _loss(job: TrainingJob, software: SoftwareMemory) -> float:
    """Count the bytes of simultaneous logits (4 bytes each in 2205.05198, section 4.3)."""
    rows = job.shape.padded_vocab_size / job.layout.tensor
    block = min(job.microbatch_tokens, software.block_tokens)
    block_bytes = block * BYTES[job.compute]
    if job.shape.logit_cap is not None:  # plus the derivative
        block_bytes *= 2
    if job.shape.z_loss:  # some of them in float32
        block_bytes += min(4 * block, 2**26 / rows)
    logits = rows * (job.microbatch_tokens * software.logit_bytes + block_bytes)
    # A float32 sum. It exists first together with the cast weight, then, for a narrow weight,
    # with the rounded sum.
    each = 4 + max(job.cast_bytes, job.gather_bytes % 4)
    each += 4 * job.mtp_depth  # until the backward pass has processed each depth
    return logits + software.own_gradients * rows * job.shape.dim * each


def _gradient(job: TrainingJob, rank: int, layers: int, microbatches: float) -> float:
    """Count the bytes of the largest gradient that exists in addition to its accumulated sum.

    Gradients of layers exist while all stored activations do. The embedding's gradient exists
    after a microbatch has freed its own part.
    """
    within = states.largest_in_layer(job) * (job.cast_bytes + job.gather_bytes) * (layers > 0)
    if rank:
        return within
    freed = microbatches / count_stored_microbatches(job, rank)
    return max(within, states.end_matrix(job) * job.gather_bytes - freed)
