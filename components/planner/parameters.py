"""Parameters that one device of a stage holds, dense and expert ones apart."""

from dataclasses import dataclass

from components.planner.job import Job


@dataclass(frozen=True, kw_only=True)
class Held:
    """Parameters on one device; the two kinds are replicated over different ranks.

    ``ends`` of the dense ones are looked up or belong to the head, ``largest`` are in one
    weight.
    """

    dense: float
    expert: float
    ends: float
    largest: float


def held(job: Job, stage: int) -> Held:
    """Count the parameters of one of the stages on one tensor and expert rank.

    Matrices are cut by the tensor degree, norms and router are not; tied ends are held by both
    the first and the last stage of a pipeline.
    """
    shape, layout = job.shape, job.layout
    layers, tensor = layout.layers[stage], layout.tensor
    experts = (shape.mlp.num_experts or 0) * shape.mlp.expert_parameters(shape.dim)
    whole = 2 * shape.norm.parameters(shape.dim) + shape.mlp.router_parameters(shape.dim)
    if shape.attention.qk_norm is not None:
        whole += shape.attention.qk_norm.parameters(shape.attention.head_dim)
    cut = shape.layer_parameters - experts - whole
    ends = _ends(job, stage)
    return Held(
        dense=layers * (cut / tensor + whole) + ends,
        expert=layers * experts / tensor / layout.expert,
        ends=ends,
        largest=max(end_matrix(job) if ends else 0.0, largest_in_layer(job) if layers else 0.0),
    )


def rank_parameters(job: Job, rank: int) -> Held:
    """Add up the parameters of all stages of one pipeline rank."""
    layout = job.layout
    counts = [held(job, s) for s in range(rank, len(layout.layers), layout.pipeline)]
    return Held(
        dense=sum(count.dense for count in counts),
        expert=sum(count.expert for count in counts),
        ends=sum(count.ends for count in counts),
        largest=max(count.largest for count in counts),
    )


def _ends(job: Job, stage: int) -> float:
    """Count the embedding on the first stage and the head on its own."""
    shape, layout = job.shape, job.layout
    matrix = end_matrix(job)
    count = 0.0
    if stage == 0:
        count += matrix + shape.position_parameters
    alone = layout.head_stage == 0 and shape.tied_embeddings
    if stage == layout.head_stage and not alone:
        count += matrix
    return count


def end_matrix(job: Job) -> float:
    """Count a rank's part of the embedding, or of the head."""
    return job.shape.padded_vocab_size * job.shape.dim / job.layout.tensor


def largest_in_layer(job: Job) -> float:
    """Count the map into the MLP, or the stack of all experts' such maps."""
    shape, layout = job.shape, job.layout
    experts = (shape.mlp.num_experts or 1) / layout.expert
    return experts * shape.mlp.ffn_dim * shape.dim / layout.tensor
