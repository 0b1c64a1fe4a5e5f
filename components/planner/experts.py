"""Expert layers: cost of the expert path, of host reads and of uneven routing in both passes.

Paths of `components.model.expert_products`: ``grouped`` needs no reads by the host. ``sorted``
reads the experts' token counts once, then starts one product after another. ``loop`` reads
before each expert, gathers the expert's tokens and adds its results to a sum over all tokens.
Permutation (the gather and the sum of ``top_k`` copies of each token) is part of the layer's
traffic: 20 bytes per number, counted in the code; the planner assumes 2 x 2 bytes, moved
``SoftwareSpeed.traffic`` times, which is 19.
"""

from typing import NamedTuple

from components.planner.job import BYTES, TrainingJob

# Operators that the host starts for each gated expert, forward and backward. GATE_STARTS is the
# part of the gate; plain experts start that many fewer. Tests count the operators in the code.
GATED_STARTS = {"loop": (12, 21), "sorted": (3, 6), "grouped": (0, 0)}
GATE_STARTS = {"loop": (2, 5), "sorted": (1, 2), "grouped": (0, 0)}


class ExpertPasses(NamedTuple):
    """Seconds, bytes or operator counts of a layer's forward and backward pass."""

    forward: float
    backward: float

    @property
    def both_passes(self) -> float:
        return self.forward + self.backward


def repeats_experts(job: TrainingJob) -> bool:
    """Whether recomputation of a layer runs its experts a second time."""
    return job.layout.recompute == "full" or "mlp" in job.layout.recompute


def held_experts(job: TrainingJob) -> float:
    """Count the experts of one layer on one rank. Dense layers return 0."""
    return (job.shape.mlp.num_experts or 0) / job.layout.expert


def count_expert_starts(job: TrainingJob) -> ExpertPasses:
    """Count the operators that the host starts for a layer's experts only."""
    forward, backward = GATED_STARTS[job.expert_path]
    if not job.shape.mlp.gated:
        less = GATE_STARTS[job.expert_path]
        forward, backward = forward - less[0], backward - less[1]
    times = held_experts(job) * _parts(job)
    return ExpertPasses(times * forward, times * backward)


def host_reads(job: TrainingJob) -> float:
    """Count the host reads that block the forward pass of one layer's experts."""
    if not job.shape.mlp.num_experts:
        return 0.0
    layout, parts = job.layout, _parts(job)
    reads = {"loop": held_experts(job) * parts, "sorted": parts, "grouped": 0}[job.expert_path]
    if layout.expert > 1 and layout.expert_dispatch == "all_to_all":
        reads += layout.expert_capacity_factor is None  # sizes of all messages
    elif layout.expert > 1 and job.expert_path != "loop":
        reads += parts  # number of pairs on this rank
    return reads


def copied_bytes(job: TrainingJob) -> ExpertPasses:
    """Count the bytes that ``loop`` moves for each expert over all tokens, not only its own.

    The forward pass copies the float32 sum: 4 bytes read and 4 written. In the backward pass,
    each gather creates a gradient for all tokens, mostly zeros, and adds it to the sum.
    """
    if job.expert_path != "loop":
        return ExpertPasses(0.0, 0.0)
    layout, mlp = job.layout, job.shape.mlp
    tokens = job.microbatch_tokens
    if layout.expert > 1 and layout.expert_dispatch == "all_to_all":
        tokens *= (mlp.top_k or 1) * job.expert_padding
    elif layout.expert > 1:
        tokens *= layout.expert
    moved = held_experts(job) * tokens * job.shape.dim
    return ExpertPasses(8 * moved, 4 * BYTES[job.compute] * moved)


def _parts(job: TrainingJob) -> int:
    return job.layout.expert_overlap if job.layout.expert > 1 else 1
