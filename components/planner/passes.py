"""Seconds of one microbatch's passes: through a layer, the head, and a pipeline rank.

A rank takes the longer of what the device computes and what the host can start.
"""

from math import sqrt
from typing import NamedTuple

from components.config.schema.cluster import Hardware
from components.errors import RecipeError
from components.planner import communication
from components.planner.activations import moved_bytes_per_token
from components.planner.experts import (
    ExpertPasses,
    copied_bytes,
    held_experts,
    host_reads,
    repeats_experts,
    started,
)
from components.planner.job import TrainingJob
from components.planner.products import (
    Product,
    attention_products,
    filled_fraction,
    head_product,
    layer_products,
    mlp_products,
    mtp_product,
    shared_products,
)
from components.planner.software import SoftwareSpeed


def busy_seconds(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> list[float]:
    """List the seconds of one microbatch on each pipeline rank; most ranks are alike."""
    busy = [0.0] * job.layout.pipeline
    for ranks in job.equal_ranks:
        seconds = rank_seconds(job, ranks[0], hardware, speed)
        for rank in ranks:
            busy[rank] = seconds
    return busy


def rank_seconds(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed
) -> float:
    """Take one microbatch forward and backward through the stages of one rank."""
    stages, product, traffic = job.stages_of(rank), 0.0, 0.0
    host = sum(n * host_seconds(kind, speed) for kind, n, _ in job.layer_kinds(stages))
    if job.head_stage in stages:
        product, traffic = head_seconds(job, hardware, speed)
    device = sum(layers_parts(job, rank, hardware, speed).values()) + (3 * product + traffic)
    return max(device, host) + 2 * _message_seconds(job, speed, len(stages))


def forward_seconds(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed
) -> float:
    """Take one microbatch forward through the stages of one rank.

    Of what a training step counts for both passes, memory traffic and the host's work are
    a third, collectives of tensor ranks a half.
    """
    stages = job.stages_of(rank)
    device = host = product = traffic = 0.0
    if job.head_stage in stages:
        product, traffic = head_seconds(job, hardware, speed)
    for kind, layers, _ in job.layer_kinds(stages):
        host += layers * host_seconds(kind, speed) / 3
        layer = layer_seconds(kind, hardware, speed)
        device += layers * (
            layer.products
            + layer.attention
            + layer.traffic / 3
            + layer.tensor / 2
            + communication.expert_seconds(kind, hardware, layer.experts)
            + layer.waits.forward
            + communication.context_seconds(kind, hardware)
        )
    return max(device + product + traffic / 3, host) + _message_seconds(job, speed, len(stages))


def _message_seconds(job: TrainingJob, speed: SoftwareSpeed, stages: int) -> float:
    """Send what the stages of a rank give in one pass, if there is a pipeline."""
    return speed.message_seconds * stages if job.layout.pipeline > 1 else 0.0


def host_seconds(job: TrainingJob, speed: SoftwareSpeed) -> float:
    """Return what the host needs to start one layer, forward and backward.

    The loop over experts starts their operators while the device waits (`_waits`).
    """
    if job.layout.tensor == 1:
        count = started(job) if job.expert_path != "loop" else ExpertPasses(0.0, 0.0)
        starts = count.both + repeats_experts(job) * count.forward
        return speed.layer_seconds + starts * speed.start_seconds
    crosses = job.groups.along("pipeline").nodes > 1
    crossing = speed.crossing_layer_seconds * job.layout.tensor if crosses else 0.0
    return speed.tensor_layer_seconds + crossing


def layers_parts(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed
) -> dict[str, float]:
    """Name what the passes of all layers of one pipeline rank consist of, in seconds."""
    counted: list[tuple[TrainingJob, int]] = []
    for kind, layers, again in job.layer_kinds(job.stages_of(rank)):
        if job.layout.recompute == "none":
            counted.append((kind, layers))
        else:
            plain = kind.with_layout(recompute="none")
            counted += [(plain, layers - again), (kind, again)]
    parts = dict[str, float]()
    for one, count in counted:
        for name, seconds in layer_parts(one, hardware, speed).items():
            parts[name] = parts.get(name, 0.0) + count * seconds
    return parts


def layer_parts(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> dict[str, float]:
    """Name what a layer's passes consist of, forward once and backward twice, in seconds.

    It is a layer that is recomputed, if the job recomputes any. A selective one repeats what
    moves memory alone, no product and no collective.
    """
    again, layer = recompute_fraction(job), layer_seconds(job, hardware, speed)
    waits, repeats = layer.waits, repeats_experts(job)
    moved = 1.0 if job.layout.recompute == "selective" else sum(again) / 2
    return {
        "products": layer.all_products + 3 * layer.attention,
        "recomputation": again[0] * layer.products + again[1] * layer.attention,
        "memory traffic": layer.traffic * (1 + moved / 3),
        "tensor collectives": (1 + again[0] / 3) * layer.tensor,
        "expert collectives": communication.expert_seconds(job, hardware, layer.experts)
        + communication.expert_seconds(job, hardware, layer.experts_backward)
        + repeats * communication.repeated_seconds(job, hardware, layer.experts),
        "experts one by one": waits.both + repeats * waits.forward,
        "context collectives": communication.context_seconds(job, hardware) * (2 + again[1]),
    }


def recompute_fraction(job: TrainingJob) -> tuple[float, float]:
    """Return the parts of the forward products, and of attention, that are computed twice.

    They are those of a layer that is recomputed.
    """
    if job.layout.recompute in {"none", "selective"}:
        return 0.0, 0.0
    if job.layout.recompute == "full":
        return 1.0, 1.0
    total = sum(product.flops for product in layer_products(job))
    attention = sum(product.flops for product in attention_products(job)) / total
    has_attention, has_mlp = "attention" in job.layout.recompute, "mlp" in job.layout.recompute
    return has_attention * attention + has_mlp * (1 - attention), float(has_attention)


class LayerSeconds(NamedTuple):
    """Seconds forward of a layer's products, the experts' alone, and attention.

    Those of experts are the fullest rank's, for which the others wait; of products one by one
    the backward pass is counted by its own shapes, else it takes twice as long.
    ``traffic`` moves what the layer keeps as often as the pointwise parts of both passes do,
    ``tensor`` are collectives of both passes. ``waits`` are those of experts for the host.
    """

    products: float
    experts: float
    experts_backward: float
    attention: float
    traffic: float
    waits: ExpertPasses
    tensor: float

    @property
    def all_products(self) -> float:
        """Seconds of the products of both passes."""
        return 3 * (self.products - self.experts) + self.experts + self.experts_backward


def layer_seconds(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> LayerSeconds:
    """Predict what one layer computes of one microbatch.

    Raises:
        RecipeError: the device does not compute in the recipe's type, or nobody measured it.
    """
    reached, units = _reached_flops(job, hardware), hardware.compute_units
    rate = reached * speed.product_fraction
    load = load_factor(job, speed)
    moved = moved_bytes_per_token(job, load) * job.microbatch_tokens * speed.traffic
    forward, backward = _expert_seconds(job, mlp_products(job), rate, units)
    experts = ExpertPasses(load * forward, load * backward)
    always = (*attention_products(job), *shared_products(job))
    return LayerSeconds(
        products=_product_seconds(always, rate, units) + experts.forward,
        experts=experts.forward,
        experts_backward=experts.backward,
        attention=_attention_seconds(job, reached, hardware, speed),
        traffic=moved / (hardware.memory_gigabytes_per_second * 1e9),
        waits=_waits(job, hardware, speed, experts),
        tensor=communication.tensor_seconds(job, hardware, speed),
    )


def load_factor(job: TrainingJob, speed: SoftwareSpeed) -> float:
    """Return the share of the fullest expert rank over the mean: all others wait for it.

    The loads of a rank's n experts are taken to be independent, so that theirs together are
    less uneven than one's by the root of n. A rank that has all experts has all pairs.
    """
    if job.even_load or job.layout.expert == 1:
        return 1.0
    beyond = (speed.fullest_expert - 1) / sqrt(held_experts(job))
    return min(1 + beyond, float(job.layout.expert))


def _waits(
    job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed, computed: ExpertPasses
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
        read + max(copies.forward, starts.forward - computed.forward),
        max(copies.backward, starts.backward - computed.backward),
    )


def _product_seconds(
    products: tuple[Product, ...], rate: float, units: int, *, together: bool = False
) -> float:
    return sum(
        product.flops / (rate * filled_fraction(product, units, together=together))
        for product in products
    )


def _attention_seconds(
    job: TrainingJob, reached: float, hardware: Hardware, speed: SoftwareSpeed
) -> float:
    """Take queries times keys and weights times values, of the pairs that a mask leaves.

    Of a causal one 2 x 2 tokens x length x width / 2 (Narayanan et al. 2021, arXiv 2104.04473,
    appendix); with windows the mean over all layers, whatever their rank. Unfused, all of both
    products is computed and the matrix goes four times through memory (Dao et al. 2022, arXiv
    2205.14135, algorithm 0).
    """
    attention, tensor = job.shape.attention, job.layout.tensor
    queries = job.microbatch_tokens * attention.num_heads / tensor * job.attention_passes
    width = attention.head_dim + job.value_width
    if job.fused_attention:
        seen = queries * job.shape.causal_keys(job.sequence_length) / job.shape.num_layers
        return 2.0 * seen * width / (reached * speed.attention_fraction)
    pairs = queries * job.sequence_length
    products = 2.0 * pairs * width / (reached * speed.product_fraction)
    return products + 4 * 2 * pairs / (hardware.memory_gigabytes_per_second * 1e9)


def _expert_seconds(
    job: TrainingJob, products: tuple[Product, ...], rate: float, units: int
) -> tuple[float, float]:
    """Take the MLP's products, or its experts', forward and backward.

    One by one an expert's gate is a product of its own, and each has two backward, of the
    gradients of rows and of weights; so few rows fill the device in none or some of the three.
    """
    if not job.shape.mlp.num_experts or job.expert_path == "grouped":
        together = bool(job.shape.mlp.num_experts)
        forward = _product_seconds(products, rate, units, together=together)
        return forward, 2 * forward
    up, down = products
    ups = 2 if job.shape.mlp.gated else 1
    alone = (up._replace(columns=up.columns / ups, times=up.times * ups), down)
    backward = [
        turned
        for one in alone
        for turned in (
            one._replace(columns=one.depth, depth=one.columns),
            one._replace(rows=one.columns, columns=one.depth, depth=one.rows),
        )
    ]
    forward = _product_seconds(alone, rate, units)
    return forward, _product_seconds(tuple(backward), rate, units)


def head_seconds(
    job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed
) -> tuple[float, float]:
    """Return the seconds of the head's product forward, and of moving its logits.

    Each depth that predicts further tokens has both again, and its map of two vectors.
    """
    depth, units = job.mtp_depth, hardware.compute_units
    rate = _reached_flops(job, hardware) * speed.product_fraction
    products = (*(1 + depth) * (head_product(job),), *depth * (mtp_product(job),))
    product = _product_seconds(products, rate, units)
    logits = job.microbatch_tokens * job.shape.padded_vocab_size / job.layout.tensor
    each = speed.logit_bytes_moved
    if job.shape.z_loss:  # as counted, tests/components/model/test_loss_precision.py
        each += 31.0
    moved = (1 + depth) * logits * each
    return product, moved / (hardware.memory_gigabytes_per_second * 1e9)


def _reached_flops(job: TrainingJob, hardware: Hardware) -> float:
    """Return FLOP/s that large products reach in the recipe's type."""
    if job.compute not in hardware.peak_teraflops:
        raise RecipeError(
            "precision.compute",
            f"the profile of {hardware.device} states no peak in {job.compute}",
            f"choose one of {', '.join(hardware.peak_teraflops)}, or add the data sheet's",
        )
    if job.compute not in hardware.gemm_teraflops:
        raise RecipeError(
            f"cluster.hardware.gemm_teraflops.{job.compute}",
            f"the profile of {hardware.device} has no measured product in {job.compute}",
            "time torch.mm of two 8,192 x 8,192 matrices on all devices of a node, "
            "and set 1.0995 / seconds",
        )
    return hardware.gemm_teraflops[job.compute] * 1e12
