"""Parameters of one device, with gradients, master copy and optimizer state by ZeRO stage.

Rajbhandari et al. 2020 (arXiv 1910.02054, section 3.1): with P parameters and k bytes of
optimizer state, stage 1 shards k, stage 2 the gradients too, stage 3 also the weights. The
Ultra-Scale Playbook (Tazi et al. 2025, "ZeRO") adds 4 bytes where gradients add up in float32.
"""

from operator import add
from typing import NamedTuple

from components.config.schema.sections import Parallelism
from components.planner.job import TrainingJob
from components.planner.software import SoftwareMemory

# Buckets under way, `components.distributed.grad_buckets` and `weight_gather`.
GRADS_AHEAD, WEIGHTS_AHEAD = 4, 2


class DeviceParameters(NamedTuple):
    """Parameters on one device; the two kinds are replicated over different ranks.

    ``ends`` of the dense ones are looked up or belong to the head, ``largest`` are in one
    weight. ``matrices`` of the dense ones are hidden, and all of the experts'.
    """

    dense: float
    expert: float
    ends: float
    largest: float
    matrices: float = 0.0


def held(job: TrainingJob, stage: int) -> DeviceParameters:
    """Count the parameters of one of the stages on one tensor and expert rank.

    Matrices and norms over all heads are cut by the tensor degree; other norms, the router and
    the activation's scalars are not. An embedding that the last stage shares with the first one
    is held by both, unless one rank has both. The map of each depth of ``mtp`` is not cut.
    """
    ends = _ends(job, stage)
    dense = expert = matrices = largest = 0.0
    for kind, layers, _ in job.layer_kinds((stage,)):
        one = _of_layer(kind)
        dense, expert = dense + layers * one.dense, expert + layers * one.expert
        matrices += layers * one.matrices
        largest = max(largest, one.largest if layers else 0.0)
    largest = max(end_matrix(job) if ends else 0.0, largest)
    if stage == job.head_stage:
        dense += job.mtp_depth * job.shape.mtp_whole_parameters
        matrices += job.mtp_depth * 2 * job.shape.dim**2
    return DeviceParameters(dense + ends, expert, ends, largest, matrices)


def _of_layer(job: TrainingJob) -> DeviceParameters:
    """Count the parameters of one layer on one tensor and expert rank."""
    shape, layout = job.shape, job.layout
    experts = (shape.mlp.num_experts or 0) * shape.mlp.expert_parameters(shape.dim)
    whole, down = shape.whole_parameters, shape.attention.down_matrices(shape.dim)
    cut = shape.layer_parameters - experts - whole
    return DeviceParameters(
        dense=cut / layout.tensor + whole,
        expert=experts / layout.tensor / layout.expert,
        ends=0.0,
        largest=largest_in_layer(job),
        matrices=down + (shape.layer_matrices - experts - down) / layout.tensor,
    )


def rank_parameters(job: TrainingJob, rank: int) -> DeviceParameters:
    """Add up the parameters of all stages of one pipeline rank."""
    counts = (held(job, stage) for stage in job.stages_of(rank))
    dense, expert, ends, largest, matrices = zip(*counts, strict=True)
    return DeviceParameters(sum(dense), sum(expert), sum(ends), max(largest), sum(matrices))


def _ends(job: TrainingJob, stage: int) -> float:
    """Count the embedding on the first stage, and what the head's own stage has of both."""
    shape, head = job.shape, job.head_stage
    count = end_matrix(job) + shape.position_parameters if stage == 0 else 0.0
    rank_of = job.placement.rank_of
    if stage == head:
        both = shape.mtp is not None and not shape.tied_embeddings
        again = rank_of(head) == rank_of(0) and shape.shares_ends
        count += end_matrix(job) * (1 + both - again)
    return count


def end_matrix(job: TrainingJob) -> float:
    """Count a rank's part of the embedding, or of the head."""
    return job.shape.padded_vocab_size * job.shape.dim / job.layout.tensor


def largest_in_layer(job: TrainingJob) -> float:
    """Count the map into the MLP, or the stack of all experts' such maps."""
    mlp, layout = job.shape.mlp, job.layout
    return (mlp.num_experts or 1) / layout.expert * mlp.ffn_dim * job.shape.dim / layout.tensor


class States(NamedTuple):
    """Bytes on one device; ``gradients`` are the sums over a step's microbatches."""

    weights: float
    gradients: float
    master: float
    optimizer: float

    @property
    def total(self) -> float:
        return sum(self)


def states(job: TrainingJob, parameters: DeviceParameters) -> States:
    """Divide each family's state among the ranks that share it."""
    of_dense, of_experts = sharing_ranks(job.layout)
    dense = sharded(job, parameters.dense, of_dense)
    experts = sharded(job, parameters.expert, of_experts)
    both = States(*map(add, dense, experts))
    if not job.muon:
        return both
    # Of matrices momentum alone is kept, one moment of two.
    matrices = (parameters.matrices, of_dense), (parameters.expert, of_experts)
    spared = sum(sharded(job, count, ranks).optimizer / 2 for count, ranks in matrices)
    return both._replace(optimizer=both.optimizer - spared)


def sharing_ranks(layout: Parallelism) -> tuple[int, int]:
    """Count the ranks that share the state of dense parameters, and of experts.

    Dense parameters are shared by the whole shard, experts by the replicas of each; where the
    optimizer is not expert-aware, expert ranks repeat the dense state (Mula's EPSO, arXiv
    2604.00785, section 3.2).
    """
    of_experts = max(1, layout.data_shard // layout.expert)
    of_dense = layout.data_shard if layout.expert_aware else of_experts
    # Context ranks hold equal weights and share their state as data ranks do.
    return of_dense * layout.context, of_experts * layout.context


def sharded(job: TrainingJob, parameters: float, ranks: int) -> States:
    """Count the state of ``parameters`` of which ``ranks`` ranks hold what ZeRO divides."""

    def share(stage: int) -> int:
        return ranks if job.layout.zero >= stage else 1

    gradients = job.gradient_bytes + job.accumulate_bytes
    return States(
        weights=parameters * job.weight_bytes / share(3),
        gradients=parameters * gradients / share(2),
        master=parameters * job.master_bytes / share(1),
        optimizer=parameters * job.moment_bytes / share(1),
    )


class UpdateBytes(NamedTuple):
    """Bytes from the end of the passes to that of the update: gradients, and beside them."""

    gradients: float
    step: float


def update_bytes(
    job: TrainingJob, parameters: DeviceParameters, software: SoftwareMemory
) -> UpdateBytes:
    """Take the fuller of two moments: the last bucket comes, or the optimizer has all.

    Where buckets leave under the backward pass, every sum is still there when the last comes,
    and beside it what this rank keeps of them.
    """
    layout, sums = job.layout, states(job, parameters).gradients
    updating = UpdateBytes(
        shard_gradients(job, parameters), step_bytes(job, parameters, software)
    )
    if not job.shard_gradient_bytes:
        return updating
    arriving = bucket_bytes(job, parameters)
    if layout.zero == 1 and job.overlaps:
        ranks = sharing_ranks(layout)
        kept = zip((parameters.dense, parameters.expert), ranks, strict=True)
        arriving = job.reduce_bytes * sum(count / size for count, size in kept if size > 1)
    return max(UpdateBytes(sums, arriving), updating, key=sum)


def shard_gradients(job: TrainingJob, parameters: DeviceParameters) -> float:
    """Count the gradients that the optimizer of one rank reads."""
    if not job.shard_gradient_bytes:
        return states(job, parameters).gradients
    dense, expert = sharing_ranks(job.layout) if job.layout.zero else (1, 1)
    return job.shard_gradient_bytes * (parameters.dense / dense + parameters.expert / expert)


def bucket_bytes(job: TrainingJob, parameters: DeviceParameters) -> float:
    """Count the buckets of one rank that are under way in a backward pass.

    On the mesh, of ZeRO 2: one fills, four are on their way; the largest weight may fill one
    alone. DeepSpeed's stages 1 and 2 allocate one whole bucket, and with ``overlap_comm`` two
    (``setup_buckets`` in its stage_1_and_2.py).
    """
    layout, total = job.layout, parameters.dense + parameters.expert
    usual = job.bucket_elements
    if layout.engine == "deepspeed" and layout.zero in {1, 2}:
        return job.gradient_bytes * (1 + job.overlaps) * min(usual, total)
    if layout.zero != 2 or not job.shard_gradient_bytes:
        return 0.0
    several = GRADS_AHEAD * usual + max(usual, parameters.largest)
    return job.reduce_bytes * min(several, total)


def step_bytes(
    job: TrainingJob, parameters: DeviceParameters, software: SoftwareMemory
) -> float:
    """Count what the optimizer's step adds for a moment to the state.

    The released H100 layouts hold 10 + 14 / data bytes a parameter after a step of ZeRO-1, 2
    and 2 / data above the textbook's 8 + 12 / data, and the textbook's 20 without ZeRO.
    """
    if not job.layout.zero:
        return 0.0
    total = parameters.dense + parameters.expert
    added = total * (software.step_bytes + software.shared_step_bytes / job.layout.data_shard)
    if max(sharing_ranks(job.layout)) > 1 and job.layout.zero < 3:
        buckets = job.layout.bucket_elements * (WEIGHTS_AHEAD if job.overlaps else 1)
        if buckets and job.layout.engine == "mesh":  # DeepSpeed gathers in place
            added += min(max(buckets, parameters.largest), total) * job.gather_bytes
    return added


def earlier_gradients(job: TrainingJob, here: States, software: SoftwareMemory) -> float:
    """Count the gradients that are there while activations are.

    Of a step's only microbatch the two do not meet: what the backward pass makes of one, it
    frees of the other.
    """
    return here.gradients if software.keeps_gradients or job.microbatches > 1 else 0.0
