"""Model states of one device: weights, gradients, master copy, optimizer state, by ZeRO stage.

Rajbhandari et al. 2020 (arXiv 1910.02054, section 3.1): with P parameters and k bytes of
optimizer state, stage 1 shards k, stage 2 also the gradients, stage 3 also the weights. Float32
sums of gradients add 4 bytes (Ultra-Scale Playbook, Tazi et al. 2025, "ZeRO").
"""

from operator import add
from typing import NamedTuple

from components.config.schema.sections import Parallelism
from components.planner.job import TrainingJob
from components.planner.software import SoftwareMemory

# Buckets in flight in `components.distributed.grad_buckets` and `weight_gather`.
GRADS_AHEAD, WEIGHTS_AHEAD = 4, 2


class DeviceParameters(NamedTuple):
    """Parameter counts of one device. Dense and expert parameters have different replica ranks.

    ``ends`` are the dense parameters of embeddings and head, ``largest`` the largest weight,
    ``matrices`` the dense hidden matrices. All expert parameters are in matrices.
    """

    dense: float
    expert: float
    ends: float
    largest: float
    matrices: float = 0.0


def count_parameters(job: TrainingJob, stage: int) -> DeviceParameters:
    """Count the parameters of one pipeline stage on one tensor and expert rank.

    Tensor ranks split matrices and the norms over all heads. They replicate the other norms,
    the router, the scalars of the activation and the map of each ``mtp`` depth. If the first
    and the last stage share an embedding, both have a copy, unless they are on the same rank.
    """
    ends = _ends(job, stage)
    dense = expert = matrices = largest = 0.0
    for kind, layers, _ in job.layer_kinds((stage,)):
        layer = _of_layer(kind)
        dense, expert = dense + layers * layer.dense, expert + layers * layer.expert
        matrices += layers * layer.matrices
        largest = max(largest, layer.largest if layers else 0.0)
    largest = max(end_matrix(job) if ends else 0.0, largest)
    if stage == job.head_stage:
        dense += job.mtp_depth * job.shape.mtp_whole_parameters
        matrices += job.mtp_depth * 2 * job.shape.dim**2
    return DeviceParameters(dense + ends, expert, ends, largest, matrices)


def _of_layer(job: TrainingJob) -> DeviceParameters:
    """Count the parameters of one layer on one tensor and expert rank."""
    shape, layout = job.shape, job.layout
    experts = (shape.mlp.num_experts or 0) * shape.mlp.expert_parameters(shape.dim)
    whole, down = shape.whole_parameters, shape.down_matrices
    cut = shape.layer_parameters - experts - whole
    stacks = (shape.mlp.num_experts or 0) * shape.mlp.expert_matrices(shape.dim)
    return DeviceParameters(
        dense=cut / layout.tensor + whole,
        expert=experts / layout.tensor / layout.expert,
        ends=0.0,
        largest=largest_in_layer(job),
        matrices=down + (shape.layer_matrices - stacks - down) / layout.tensor,
    )


def rank_parameters(job: TrainingJob, rank: int) -> DeviceParameters:
    """Sum the parameters of all stages of one pipeline rank."""
    counts = (count_parameters(job, stage) for stage in job.stages_of(rank))
    dense, expert, ends, largest, matrices = zip(*counts, strict=True)
    return DeviceParameters(sum(dense), sum(expert), sum(ends), max(largest), sum(matrices))


def _ends(job: TrainingJob, stage: int) -> float:
    """Count the parameters of the embedding and the head that are on this stage."""
    shape, head = job.shape, job.head_stage
    count = end_matrix(job) + shape.position_parameters if stage == 0 else 0.0
    rank_of = job.stage_placement.rank_of
    if stage == head:
        both = shape.mtp is not None and not shape.tied_embeddings
        again = rank_of(head) == rank_of(0) and shape.shares_ends
        count += end_matrix(job) * (1 + both - again)
    return count


def end_matrix(job: TrainingJob) -> float:
    """Count the parameters of the embedding (or of the head) on one tensor rank."""
    return job.shape.padded_vocab_size * job.shape.dim / job.layout.tensor


def largest_in_layer(job: TrainingJob) -> float:
    """Count the parameters of the MLP's input matrix, or of the stack of all experts' ones.

    In a layer with a linear mixer, the output matrix of the mixer may be larger.
    """
    mlp, layout, mixer = job.shape.mlp, job.layout, job.shape.layer_type.mixer
    width = (mlp.num_experts or 1) / layout.expert * mlp.ffn_dim
    return max(width, mixer.value_width if mixer else 0) * job.shape.dim / layout.tensor


class States(NamedTuple):
    """Bytes of model state on one device; ``gradients`` are summed over microbatches."""

    weights: float
    gradients: float
    master: float
    optimizer: float

    @property
    def total_bytes(self) -> float:
        return sum(self)


def compute_states(job: TrainingJob, parameters: DeviceParameters) -> States:
    """Return the state bytes of both families, each divided among the ranks that share it."""
    dense_ranks, expert_ranks = sharing_ranks(job.layout)
    dense = shard_states(job, parameters.dense, dense_ranks)
    experts = shard_states(job, parameters.expert, expert_ranks)
    both = States(*map(add, dense, experts))
    if not job.muon:
        return both
    # Muon keeps one moment for matrices. AdamW keeps two.
    matrices = (parameters.matrices, dense_ranks), (parameters.expert, expert_ranks)
    spared = sum(shard_states(job, count, ranks).optimizer / 2 for count, ranks in matrices)
    return both._replace(optimizer=both.optimizer - spared)


def sharing_ranks(layout: Parallelism) -> tuple[int, int]:
    """Return the number of ranks that share the state of dense and of expert parameters.

    The data shard shares the dense state, an expert's replicas the expert's. If the optimizer
    is not expert-aware, expert ranks replicate the dense state (arXiv 2604.00785, section 3.2).
    """
    of_experts = max(1, layout.data_shard // layout.expert)
    of_dense = layout.data_shard if layout.expert_aware else of_experts
    # Context ranks hold equal weights and share their state as data ranks do.
    return of_dense * layout.context, of_experts * layout.context


def shard_states(job: TrainingJob, parameters: float, ranks: int) -> States:
    """Return the state bytes of ``parameters`` if ZeRO shards them over ``ranks`` ranks."""

    def shards_at_stage(stage: int) -> int:
        return ranks if job.layout.zero >= stage else 1

    gradients = job.gradient_bytes + job.accumulate_bytes
    return States(
        weights=parameters * job.weight_bytes / shards_at_stage(3),
        gradients=parameters * gradients / shards_at_stage(2),
        master=parameters * job.master_bytes / shards_at_stage(1),
        optimizer=parameters * job.moment_bytes / shards_at_stage(1),
    )


class UpdateBytes(NamedTuple):
    """Bytes between the passes and the end of the update: gradients, and everything else."""

    gradients: float
    step: float


def update_bytes(
    job: TrainingJob, rank: int, parameters: DeviceParameters, software: SoftwareMemory
) -> UpdateBytes:
    """Return the largest of three peaks: the last bucket, shared ends, or the optimizer step.

    If buckets are sent during the backward pass, all gradient sums still exist when the last
    bucket arrives, in addition to this rank's share of the reduced gradients. If both pipeline
    ends have the embedding, each receives the other's gradient and adds it
    (`components.distributed.pipeline.sum_tied_gradients`); Megatron sums them in place.
    """
    layout, sums = job.layout, compute_states(job, parameters).gradients
    shards = shard_gradients(job, parameters)
    step = step_bytes(job, parameters, software)
    has_one_end = job.shape.shares_ends and (rank == 0) != job.has_head(rank)
    if has_one_end and software.own_gradients:
        embedding = DeviceParameters(end_matrix(job), 0.0, 0.0, 0.0)
        step = max(step, 2 * shard_gradients(job, embedding))
    updating = UpdateBytes(shards, step)
    if not job.shard_gradient_bytes:
        return updating
    arriving = bucket_bytes(job, parameters)
    if layout.zero == 1 and job.has_overlap:
        ranks = sharing_ranks(layout)
        families = zip((parameters.dense, parameters.expert), ranks, strict=True)
        arriving = job.reduce_bytes * sum(count / size for count, size in families if size > 1)
    return max(UpdateBytes(sums, arriving), updating, key=sum)


def shard_gradients(job: TrainingJob, parameters: DeviceParameters) -> float:
    """Count the bytes of the gradients that one rank's optimizer reads."""
    if not job.shard_gradient_bytes:
        return compute_states(job, parameters).gradients
    dense, expert = sharing_ranks(job.layout) if job.layout.zero else (1, 1)
    return job.shard_gradient_bytes * (parameters.dense / dense + parameters.expert / expert)


def bucket_bytes(job: TrainingJob, parameters: DeviceParameters) -> float:
    """Count the bytes of one rank's gradient buckets in flight in a backward pass.

    On the mesh with ZeRO 2, one bucket fills (perhaps with the largest weight) while four are
    in flight. DeepSpeed's stages 1 and 2 allocate one whole bucket, and two with
    ``overlap_comm`` (``setup_buckets`` in its stage_1_and_2.py).
    """
    layout, total = job.layout, parameters.dense + parameters.expert
    usual = job.bucket_elements
    if layout.engine == "deepspeed" and layout.zero in {1, 2}:
        return job.gradient_bytes * (1 + job.has_overlap) * min(usual, total)
    if layout.zero != 2 or not job.shard_gradient_bytes:
        return 0.0
    several = GRADS_AHEAD * usual + max(usual, parameters.largest)
    return job.reduce_bytes * min(several, total)


def step_bytes(
    job: TrainingJob, parameters: DeviceParameters, software: SoftwareMemory
) -> float:
    """Count the temporary bytes of the optimizer step in addition to the state.

    The released H100 layouts have 10 + 14 / data bytes per parameter after a step of ZeRO-1
    (the textbook's are 8 + 12 / data), and without ZeRO the textbook's 20.
    """
    if not job.layout.zero:
        return 0.0
    total = parameters.dense + parameters.expert
    added = total * (software.step_bytes + software.shared_step_bytes / job.layout.data_shard)
    if max(sharing_ranks(job.layout)) > 1 and job.layout.zero < 3:
        buckets = job.layout.bucket_elements * (WEIGHTS_AHEAD if job.has_overlap else 1)
        if buckets and job.layout.engine == "mesh":  # DeepSpeed gathers in place
            added += min(max(buckets, parameters.largest), total) * job.gather_bytes
    return added


def earlier_gradients(job: TrainingJob, here: States, software: SoftwareMemory) -> float:
    """Count the gradient bytes that exist together with the activations.

    With one microbatch per step, the backward pass frees activations as it creates gradients.
    """
    return here.gradients if software.keeps_gradients or job.microbatches > 1 else 0.0
