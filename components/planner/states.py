"""Weights, gradients, master copy and optimizer state on one device, by ZeRO stage.

Rajbhandari et al. 2020 (arXiv 1910.02054, section 3.1): with P parameters and k bytes of
optimizer state, stage 1 shards k, stage 2 the gradients too, stage 3 also the weights. The
Ultra-Scale Playbook (Tazi et al. 2025, "ZeRO") adds 4 bytes where gradients add up in float32.
"""

from dataclasses import dataclass

from components.planner.job import Job
from components.planner.parameters import Held
from components.planner.software import SoftwareMemory


@dataclass(frozen=True, kw_only=True)
class States:
    """Bytes on one device."""

    weights: float
    gradients: float
    master: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.master + self.optimizer

    def plus(self, other: "States") -> "States":
        return States(
            weights=self.weights + other.weights,
            gradients=self.gradients + other.gradients,
            master=self.master + other.master,
            optimizer=self.optimizer + other.optimizer,
        )


def states(job: Job, parameters: Held) -> States:
    """Divide each family's state among the ranks that share it.

    Dense parameters are shared by the whole shard, experts by the replicas of each; where the
    optimizer is not expert-aware, expert ranks repeat the dense state (Mula's EPSO, arXiv
    2604.00785, section 3.2).
    """
    layout = job.layout
    of_experts = max(1, layout.data_shard // layout.expert)
    of_dense = layout.data_shard if layout.expert_aware else of_experts
    # Context ranks hold equal weights and share their state as data ranks do.
    dense = sharded(job, parameters.dense, of_dense * layout.context)
    return dense.plus(sharded(job, parameters.expert, of_experts * layout.context))


def sharded(job: Job, parameters: float, ranks: int) -> States:
    """Count the state of ``parameters`` of which ``ranks`` ranks hold what ZeRO divides."""
    zero = job.layout.zero

    def share(stage: int) -> int:
        return ranks if zero >= stage else 1

    gradients = job.gradient_bytes + job.accumulate_bytes
    return States(
        weights=parameters * job.weight_bytes / share(3),
        gradients=parameters * gradients / share(2),
        master=parameters * job.master_bytes / share(1),
        optimizer=parameters * job.moment_bytes / share(1),
    )


def step_bytes(job: Job, parameters: Held, software: SoftwareMemory) -> float:
    """Count what the optimizer's step adds for a moment to the state.

    The released H100 layouts hold 10 + 14 / data bytes a parameter after a step of ZeRO-1, 2
    and 2 / data above the textbook's 8 + 12 / data, and the textbook's 20 without ZeRO.
    """
    if not job.layout.zero:
        return 0.0
    total = parameters.dense + parameters.expert
    added = total * (software.step_bytes + software.shared_step_bytes / job.layout.data_shard)
    if job.layout.data_shard * job.layout.context > 1 and software.bucket_elements:
        added += max(software.bucket_elements, parameters.largest) * job.weight_bytes
    return added


def earlier_gradients(job: Job, here: States, software: SoftwareMemory) -> float:
    """Count the gradients that are there while activations are.

    Of a step's only microbatch the two do not meet: what the backward pass makes of one, it
    frees of the other.
    """
    return here.gradients if software.keeps_gradients or job.microbatches > 1 else 0.0
