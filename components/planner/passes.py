"""Pass time: seconds of one microbatch through a layer, the head and a pipeline rank.

A rank takes the longer of the device's compute time and the host's launch time.
"""

from collections.abc import Mapping
from math import sqrt
from typing import NamedTuple

from components.config.schema.cluster import Hardware
from components.errors import RecipeError
from components.planner import communication
from components.planner.activations import moved_bytes_per_token
from components.planner.experts import (
    ExpertPasses,
    copied_bytes,
    count_expert_starts,
    held_experts,
    host_reads,
    repeats_experts,
)
from components.planner.job import TrainingJob
from components.planner.products import (
    Product,
    filled_fraction,
    head_product,
    layer_products,
    mixing_products,
    mlp_products,
    mtp_product,
    shared_products,
)
from components.planner.software import SoftwareSpeed

# Launches of operators, forward and backward. Dry runs count as many (test_launches.py). A
# weight's gradient is added to a sum and cleared; rotary positions change queries and keys.
# Masks and losses are launched once for each microbatch.
PRODUCT_LAUNCHES, WEIGHT_LAUNCHES, NORM_LAUNCHES, ROTARY_LAUNCHES = 3, 2, 2, 24
LAYER_LAUNCHES, GATE_LAUNCHES, DROPOUT_LAUNCHES, END_LAUNCHES = 14, 3, 4, 90
UPDATE_LAUNCHES = 3  # for each weight in the optimizer step
TENSOR_CALLS = 10  # 4 gathers and 4 scatters of a layer, and 2 gathers that are repeated
# Operators of a chunk, forward and backward, without and with corrections; a test counts them.
SCAN_STARTS = {2: 17.0, 3: 23.0}
FORWARD_SCAN_STARTS = {2: 6.0, 3: 8.0}  # the operators of the forward pass


def busy_seconds(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> list[float]:
    """Return the seconds of one microbatch on each pipeline rank; compute equal ranks once."""
    busy = [0.0] * job.layout.pipeline
    for ranks in job.equal_ranks:
        seconds = rank_seconds(job, ranks[0], hardware, speed)
        for rank in ranks:
            busy[rank] = seconds
    return busy


def rank_seconds(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed
) -> float:
    """Return the seconds of one microbatch forward and backward through one rank's stages."""
    stages, product, traffic = job.stages_of(rank), 0.0, 0.0
    host = sum(
        layers * host_seconds(kind, hardware, speed)
        + again * repeated_seconds(kind, hardware, speed)
        for kind, layers, again in job.layer_kinds(stages)
    )
    if job.head_stage in stages:
        product, traffic = head_seconds(job, hardware, speed)
        host += END_LAUNCHES * speed.launch_seconds
    device = sum(layers_parts(job, rank, hardware, speed).values()) + (3 * product + traffic)
    return max(device, host) + 2 * _message_seconds(job, speed, len(stages))


def forward_seconds(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed
) -> float:
    """Return the seconds of one microbatch forward through one rank's stages."""
    stages = job.stages_of(rank)
    device = host = product = traffic = 0.0
    if job.head_stage in stages:
        product, traffic = head_seconds(job, hardware, speed)
        host += END_LAUNCHES * speed.launch_seconds / 3
    for kind, layers, _ in job.layer_kinds(stages):
        host += layers * host_seconds(kind, hardware, speed) / 3
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
    """Return the seconds to send the outputs of a rank's stages in one pass of a pipeline."""
    return speed.message_seconds * stages if job.layout.pipeline > 1 else 0.0


def host_seconds(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> float:
    """Return the seconds that the host needs to launch one layer, forward and backward.

    The loop over experts launches their operators while the device waits (`_waits`).
    """
    count = count_expert_starts(job) if job.expert_path != "loop" else ExpertPasses(0.0, 0.0)
    launches = count_launches(job) + _count_scan_starts(job, SCAN_STARTS)
    launches += count.both_passes + repeats_experts(job) * count.forward
    seconds = launches * speed.launch_seconds
    if job.layout.tensor > 1:
        crosses = job.rank_groups.find_group("pipeline").nodes > 1
        seconds += TENSOR_CALLS * speed.call_seconds
        seconds += job.layout.tensor * (hardware.across.crossing_layer_seconds or 0.0) * crosses
    return seconds


def repeated_seconds(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> float:
    """Return the seconds that the host needs to launch the recomputed part of one layer."""
    products, attention = recompute_fraction(job)
    scans = _count_scan_starts(job, SCAN_STARTS) * speed.launch_seconds
    repeated = bool(attention) * _count_scan_starts(job, FORWARD_SCAN_STARTS)
    others = host_seconds(job, hardware, speed) - scans
    return others * (products + attention) / 6 + repeated * speed.launch_seconds


def count_launches(job: TrainingJob) -> float:
    """Count the operators that the host launches for one layer, forward and backward.

    Experts and scans are counted apart. In compiled layers, the operators between two products
    are one.
    """
    products, biases, norms, weights = _count_weights(job)
    between = LAYER_LAUNCHES + biases + NORM_LAUNCHES * norms + DROPOUT_LAUNCHES * job.dropout
    between += GATE_LAUNCHES * job.shape.mlp.gated
    between += ROTARY_LAUNCHES * (job.shape.positions.base is not None)
    if job.layout.compile != "none":
        between = min(between, PRODUCT_LAUNCHES * products)
    return PRODUCT_LAUNCHES * products + WEIGHT_LAUNCHES * weights + between


def count_update_launches(job: TrainingJob, rank: int) -> float:
    """Count the operators that the host launches in the optimizer step."""
    layers = job.layer_kinds(job.stages_of(rank))
    return UPDATE_LAUNCHES * sum(n * _count_weights(kind)[-1] for kind, n, _ in layers)


def _count_weights(job: TrainingJob) -> tuple[int, int, int, int]:
    """Count the products of one layer, their biases, its norms and its weight tensors."""
    attention, mlp, norm = job.shape.attention, job.shape.mlp, job.shape.norm
    products = 4 + (attention.key_value_rank is not None) + (3 if mlp.gated else 2)
    norms = 2 + 2 * (attention.qk_norm is not None)
    biases = 4 * attention.bias + (3 if mlp.gated else 2) * mlp.bias
    return products, biases, norms, products + biases + norms * (1 + norm.bias)


def _count_scan_starts(job: TrainingJob, per_chunk: Mapping[int, float]) -> float:
    """Count the operators that the host starts for the chunks of a scan."""
    mixer = job.shape.layer_type.mixer
    if mixer is None:
        return 0.0
    chunks = job.sequence_length / job.layout.context / mixer.chunk_tokens
    return per_chunk[mixer.state_products] * chunks


def layers_parts(
    job: TrainingJob, rank: int, hardware: Hardware, speed: SoftwareSpeed
) -> dict[str, float]:
    """Return the seconds by part of all layers' passes on one pipeline rank."""
    counted: list[tuple[TrainingJob, int]] = []
    for kind, layers, again in job.layer_kinds(job.stages_of(rank)):
        if job.layout.recompute == "none":
            counted.append((kind, layers))
        else:
            plain = kind.with_layout(recompute="none")
            counted += [(plain, layers - again), (kind, again)]
    parts = dict[str, float]()
    for alike, count in counted:
        for name, seconds in layer_parts(alike, hardware, speed).items():
            parts[name] = parts.get(name, 0.0) + count * seconds
    return parts


def layer_parts(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> dict[str, float]:
    """Return the seconds by part of a layer's passes: forward once and backward twice.

    If the job recomputes any layers, this is a recomputed layer. Selective recomputation
    repeats only memory-bound operations, no products and no collectives.
    """
    again, layer = recompute_fraction(job), layer_seconds(job, hardware, speed)
    waits, repeats = layer.waits, repeats_experts(job)
    moved = 1.0 if job.layout.recompute == "selective" else sum(again) / 2
    products = 3 * (layer.products - layer.experts) + layer.experts + layer.experts_backward
    return {
        "products": products + 3 * layer.attention,
        "recomputation": again[0] * layer.products + again[1] * layer.attention,
        "memory traffic": layer.traffic * (1 + moved / 3),
        "tensor collectives": (1 + again[0] / 3) * layer.tensor,
        "expert collectives": communication.expert_seconds(job, hardware, layer.experts)
        + communication.expert_seconds(job, hardware, layer.experts_backward)
        + repeats * communication.repeated_seconds(job, hardware, layer.experts),
        "experts one by one": waits.both_passes + repeats * waits.forward,
        "context collectives": communication.context_seconds(job, hardware) * (2 + again[1]),
    }


def recompute_fraction(job: TrainingJob) -> tuple[float, float]:
    """Return the recomputed fractions of a layer's forward products and of its attention."""
    if job.layout.recompute in {"none", "selective"}:
        return 0.0, 0.0
    if job.layout.recompute == "full":
        return 1.0, 1.0
    total = sum(product.num_flops for product in layer_products(job))
    attention = sum(product.num_flops for product in mixing_products(job)) / total
    has_attention, has_mlp = "attention" in job.layout.recompute, "mlp" in job.layout.recompute
    return has_attention * attention + has_mlp * (1 - attention), float(has_attention)


class LayerSeconds(NamedTuple):
    """Forward seconds of a layer's products, of the experts alone, of attention and scans.

    The experts' seconds are for the fullest rank, because the others wait for it. If experts
    run one by one, their backward pass is computed from its own shapes; otherwise it takes
    twice as long. ``traffic`` (of pointwise operations) and ``tensor`` (collectives) are for
    both passes. ``waits`` are the experts' waits for the host.
    """

    products: float
    experts: float
    experts_backward: float
    attention: float
    traffic: float
    waits: ExpertPasses
    tensor: float


def layer_seconds(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> LayerSeconds:
    """Predict one layer's compute seconds; RecipeError for a type without a measurement."""
    reached, units = _reached_flops(job, hardware), hardware.compute_units
    rate = reached * speed.product_fraction
    load = load_factor(job, speed)
    moved = moved_bytes_per_token(job, load) * job.microbatch_tokens * speed.traffic
    forward, backward = _expert_seconds(job, mlp_products(job), rate, units)
    experts = ExpertPasses(load * forward, load * backward)
    always = (*mixing_products(job), *shared_products(job))
    return LayerSeconds(
        products=_product_seconds(always, rate, units) + experts.forward,
        experts=experts.forward,
        experts_backward=experts.backward,
        attention=_attention_seconds(job, reached, hardware, speed) + _scan_seconds(job, rate),
        traffic=moved / (hardware.memory_gigabytes_per_second * 1e9),
        waits=_waits(job, hardware, speed, experts),
        tensor=communication.tensor_seconds(job, hardware, speed),
    )


def load_factor(job: TrainingJob, speed: SoftwareSpeed) -> float:
    """Return the fullest expert rank's load over the mean load. All other ranks wait for it.

    Loads of a rank's n experts count as independent: their deviation is 1 / sqrt(n) of one's.
    """
    if job.even_load or job.layout.expert == 1:
        return 1.0
    beyond = (speed.fullest_expert - 1) / sqrt(held_experts(job))
    return min(1 + beyond, float(job.layout.expert))


def _waits(
    job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed, computed: ExpertPasses
) -> ExpertPasses:
    """Return the seconds that host waits and copies add to a layer's passes.

    ``computed`` are the seconds of the experts' products. A read drains the device's queue, so
    the loop's launches hide only behind its own products, not the whole layer (`host_seconds`).
    """
    read = host_reads(job) * speed.read_seconds
    if job.expert_path != "loop":
        return ExpertPasses(read, 0.0)
    rate = hardware.memory_gigabytes_per_second * 1e9
    copies = ExpertPasses(*(moved / rate for moved in copied_bytes(job)))
    starts = ExpertPasses(*(count * speed.launch_seconds for count in count_expert_starts(job)))
    return ExpertPasses(
        read + max(copies.forward, starts.forward - computed.forward),
        max(copies.backward, starts.backward - computed.backward),
    )


def _product_seconds(
    products: tuple[Product, ...], rate: float, units: int, *, together: bool = False
) -> float:
    return sum(
        product.num_flops / (rate * filled_fraction(product, units, together=together))
        for product in products
    )


def _attention_seconds(
    job: TrainingJob, reached: float, hardware: Hardware, speed: SoftwareSpeed
) -> float:
    """Return the seconds of the attention products for the pairs that the mask allows.

    A causal mask needs 2 x 2 tokens x length x width / 2 (Narayanan et al. 2021, arXiv
    2104.04473, appendix). With windows, this is the mean over all layers of all ranks. Unfused
    attention computes all of both products, and its matrix goes four times through memory (Dao
    et al. 2022, arXiv 2205.14135, algorithm 0).
    """
    attention, tensor = job.shape.attention, job.layout.tensor
    queries = job.microbatch_tokens * attention.num_heads / tensor * job.attention_passes
    width = attention.head_dim + job.value_width
    if job.fused_attention:
        attended = queries * job.shape.causal_keys(job.sequence_length) / job.shape.num_layers
        return 2.0 * attended * width / (reached * speed.attention_fraction)
    pairs = queries * job.sequence_length
    products = 2.0 * pairs * width / (reached * speed.product_fraction)
    return products + 4 * 2 * pairs / (hardware.memory_gigabytes_per_second * 1e9)


def _scan_seconds(job: TrainingJob, rate: float) -> float:
    """Return the seconds of the products of a linear mixer's scan.

    No measurement exists for such small products in float32: the result is a lower bound.
    Context ranks scan twice, the second time from the states of the earlier tokens.
    """
    mixer, layout = job.shape.layer_type.mixer, job.layout
    if mixer is None:
        return 0.0
    scans = 1 + (layout.context > 1)
    return scans * mixer.scan_flops * job.microbatch_tokens / layout.tensor / rate


def _expert_seconds(
    job: TrainingJob, products: tuple[Product, ...], rate: float, units: int
) -> tuple[float, float]:
    """Return the forward and backward seconds of the MLP's or its experts' products.

    If experts run one by one, an expert's gate is a separate product, and the two backward
    products (for rows and for weights) have other shapes, which may not fill the device.
    """
    if not job.shape.mlp.num_experts or job.expert_path == "grouped":
        together = bool(job.shape.mlp.num_experts)
        forward = _product_seconds(products, rate, units, together=together)
        return forward, 2 * forward
    up, down = products
    ups = 2 if job.shape.mlp.gated else 1
    single = (up._replace(columns=up.columns / ups, times=up.times * ups), down)
    backward = [
        gradient
        for product in single
        for gradient in (
            product._replace(columns=product.depth, depth=product.columns),
            product._replace(rows=product.columns, columns=product.depth, depth=product.rows),
        )
    ]
    forward = _product_seconds(single, rate, units)
    return forward, _product_seconds(tuple(backward), rate, units)


def head_seconds(
    job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed
) -> tuple[float, float]:
    """Return the forward seconds of the head's product, and the seconds to move its logits."""
    depth, units = job.mtp_depth, hardware.compute_units
    rate = _reached_flops(job, hardware) * speed.product_fraction
    products = (*(1 + depth) * (head_product(job),), *depth * (mtp_product(job),))
    product = _product_seconds(products, rate, units)
    logits = job.microbatch_tokens * job.shape.padded_vocab_size / job.layout.tensor
    each = speed.logit_bytes_moved
    if job.shape.z_loss:  # counted in tests/components/model/test_loss_precision.py
        each += 31.0
    moved = (1 + depth) * logits * each
    return product, moved / (hardware.memory_gigabytes_per_second * 1e9)


def _reached_flops(job: TrainingJob, hardware: Hardware) -> float:
    """Return the FLOP/s that large products reach in the recipe's type."""
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
