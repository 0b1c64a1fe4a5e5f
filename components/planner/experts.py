"""Experts: what their path, the host and an uneven router add to a layer's two passes.

Of the three paths of `components.model.expert_products`, ``grouped`` asks the host nothing,
``sorted`` reads the experts' counts once and then starts one product after another, ``loop``
reads before each expert, gathers that expert's tokens and adds its results to a sum of all.

Permutation, the gather and the sum of ``top_k`` copies of each token, is part of the layer's
traffic: 20 bytes a number counted through the code, taken as 2 x 2 bytes moved
``SoftwareSpeed.traffic`` times, 19.
"""

from typing import NamedTuple

from components.planner.job import BYTES, TrainingJob

# Operators that the host starts for each expert, forward and backward: of a gated one, with
# those of a plain one less what its gate has. Tests count them in the code.
GATED_STARTS = {"loop": (12, 21), "sorted": (3, 6), "grouped": (0, 0)}
GATE_STARTS = {"loop": (2, 5), "sorted": (1, 2), "grouped": (0, 0)}


class ExpertPasses(NamedTuple):
    """Seconds, bytes or operators of a layer's forward and of its backward pass."""

    forward: float
    backward: float

    @property
    def both(self) -> float:
        return self.forward + self.backward


def repeats_experts(job: TrainingJob) -> bool:
    """Whether a layer that is recomputed goes through its experts once more."""
    return job.layout.recompute == "full" or "mlp" in job.layout.recompute


def held_experts(job: TrainingJob) -> float:
    """Count the experts of one layer on one rank, 0 of a dense one."""
    return (job.shape.mlp.num_experts or 0) / job.layout.expert


def started(job: TrainingJob) -> ExpertPasses:
    """Count the operators that the host starts for a layer's experts alone."""
    forward, backward = GATED_STARTS[job.expert_path]
    if not job.shape.mlp.gated:
        less = GATE_STARTS[job.expert_path]
        forward, backward = forward - less[0], backward - less[1]
    times = held_experts(job) * _parts(job)
    return ExpertPasses(times * forward, times * backward)


def host_reads(job: TrainingJob) -> float:
    """Count how often a forward pass of one layer's experts waits for the host to read."""
    if not job.shape.mlp.num_experts:
        return 0.0
    layout, parts = job.layout, _parts(job)
    reads = {"loop": held_experts(job) * parts, "sorted": parts, "grouped": 0}[job.expert_path]
    if layout.expert > 1 and layout.expert_dispatch == "all_to_all":
        reads += layout.expert_bound is None  # the sizes of all messages
    elif layout.expert > 1 and job.expert_path != "loop":
        reads += parts  # how many pairs are here
    return reads


def copied_bytes(job: TrainingJob) -> ExpertPasses:
    """Count what the loop moves for each expert of all tokens here, not of the expert's own.

    Forward it copies the float32 sum, 4 bytes read and written; backward each gather of tokens
    makes a gradient of all of them, zeros but for its own, and adds it to the others'.
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
