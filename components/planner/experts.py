"""Experts: what their path, the host and an uneven router add to a layer's two passes.

Of the three paths of `components.model.expert_products`, ``grouped`` asks the host nothing,
``sorted`` reads the experts' counts once and then starts one product after another, ``loop``
reads before each expert, gathers that expert's tokens and adds its results to a sum of all.

Permutation, the gather and the sum of ``top_k`` copies of each token, is part of the layer's
traffic: 20 bytes a number counted through the code, taken as 2 x 2 bytes moved
``SoftwareSpeed.traffic`` times, 19.
"""

from math import sqrt
from typing import NamedTuple

from components.config.schema.cluster import Hardware
from components.planner.job import BYTES, TrainingJob
from components.planner.software import SoftwareSpeed

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


def load_factor(job: TrainingJob, speed: SoftwareSpeed) -> float:
    """Return the share of the fullest expert rank over the mean: all others wait for it.

    The loads of a rank's n experts are taken to be independent, so that theirs together are
    less uneven than one's by the root of n. A rank that has all experts has all pairs.
    """
    if job.even_load or job.layout.expert == 1:
        return 1.0
    beyond = (speed.fullest_expert - 1) / sqrt(held_experts(job))
    return min(1 + beyond, float(job.layout.expert))


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


def waits(
    job: TrainingJob,
    hardware: Hardware,
    speed: SoftwareSpeed,
    computed: tuple[float, float],
) -> ExpertPasses:
    """Return what passes take longer than a layer's products and its traffic.

    ``computed`` are the seconds of the experts' products, forward and backward. A read drains
    the device's queue: so the loop hides the start of its operators behind its own products
    alone, where other paths have the whole layer to hide it behind (`host_seconds`).
    """
    read = host_reads(job) * speed.read_seconds
    if job.expert_path != "loop":
        return ExpertPasses(read, 0.0)
    rate = hardware.memory_gigabytes_per_second * 1e9
    copies = ExpertPasses(*(moved / rate for moved in copied_bytes(job)))
    starts = ExpertPasses(*(count * speed.start_seconds for count in started(job)))
    return ExpertPasses(
        read + max(copies.forward, starts.forward - computed[0]),
        max(copies.backward, starts.backward - computed[1]),
    )


def started_seconds(job: TrainingJob, speed: SoftwareSpeed) -> float:
    """Return the host's seconds for the experts' operators of both passes, if they can hide."""
    if job.expert_path == "loop":
        return 0.0
    count = started(job)
    return (count.both + repeats_experts(job) * count.forward) * speed.start_seconds


def _parts(job: TrainingJob) -> int:
    return job.layout.expert_overlap if job.layout.expert > 1 else 1
