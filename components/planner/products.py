"""Seconds of one layer's computation for one microbatch, forward, on one device.

A matrix product is cut in tiles that are dealt to the device's units in waves; a last tile or
wave that is not full takes as long as a full one (NVIDIA, "Matrix Multiplication Background
User's Guide", sections 4.1 to 4.3). The same guide asks for multiples of 64 numbers.
"""

from dataclasses import dataclass
from math import ceil

from components.config.schema.cluster import Hardware
from components.planner.activations import full_layer_bytes_per_token
from components.planner.job import TrainingJob
from components.planner.software import SoftwareSpeed

TILE_ROWS, TILE_COLUMNS = 128, 128
ALIGNED = 64
# A width of 14,400 / 8 = 1,800 against 13,824 / 8 = 1,728, both otherwise alike: 94.4 against
# 120.1 TFLOP/s (bigscience, chronicles-prequel.md, "tile and wave quantization").
UNALIGNED_FRACTION = 0.79


@dataclass(frozen=True, kw_only=True)
class Product:
    """A product of a (rows, depth) and a (depth, columns) matrix, ``times`` over."""

    rows: float
    columns: float
    depth: float
    times: float = 1.0

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.columns * self.depth * self.times


def filled_fraction(product: Product, units: int) -> float:
    """Return what part of the speed of a well-formed product this shape has."""
    rows, columns = max(product.rows, 1.0), max(product.columns, 1.0)
    tiles = ceil(rows / TILE_ROWS) * ceil(columns / TILE_COLUMNS)
    started = ceil(tiles / units) * units
    filled = rows * columns / (TILE_ROWS * TILE_COLUMNS) / started
    aligned = product.columns % ALIGNED == 0 and product.depth % ALIGNED == 0
    return min(1.0, filled) * (1.0 if aligned else UNALIGNED_FRACTION)


def layer_products(job: TrainingJob) -> tuple[Product, ...]:
    """List the products of one layer on one tensor and expert rank."""
    shape, tensor, tokens = job.shape, job.layout.tensor, job.microbatch_tokens
    attention = shape.attention
    queries = attention.num_heads * attention.head_dim
    # Where there are fewer key/value heads than tensor ranks, ranks hold copies.
    keys = max(attention.num_kv_heads / tensor, 1.0) * attention.head_dim
    return (
        Product(rows=tokens, columns=queries / tensor + 2 * keys, depth=shape.dim),
        Product(rows=tokens, columns=shape.dim, depth=queries / tensor),
        *_mlp_products(job),
    )


def _mlp_products(job: TrainingJob) -> tuple[Product, ...]:
    """Two products, or a pair for each expert held, whose tokens are spread evenly."""
    shape, tokens = job.shape, job.microbatch_tokens
    width = shape.mlp.ffn_dim / job.layout.tensor
    ups = 2 if shape.mlp.gated else 1
    experts = (shape.mlp.num_experts or 1) / job.layout.expert
    rows = tokens * (shape.mlp.top_k or 1) / experts
    return (
        Product(rows=rows, columns=ups * width, depth=shape.dim, times=experts),
        Product(rows=rows, columns=shape.dim, depth=width, times=experts),
    )


def product_seconds(
    products: tuple[Product, ...], teraflops: float, speed: SoftwareSpeed, units: int
) -> float:
    """Add up products at the part of ``teraflops`` that their shapes allow."""
    rate = teraflops * 1e12 * speed.product_fraction
    return sum(product.flops / (rate * filled_fraction(product, units)) for product in products)


def attention_seconds(
    job: TrainingJob, teraflops: float, hardware: Hardware, speed: SoftwareSpeed
) -> float:
    """Take queries times keys and weights times values, of which a causal mask leaves half.

    2 x 2 tokens x length x width / 2 (Narayanan et al. 2021, arXiv 2104.04473, appendix).
    Unfused, all of both products is computed and the matrix goes four times through memory
    (Dao et al. 2022, arXiv 2205.14135, algorithm 0).
    """
    attention, tensor = job.shape.attention, job.layout.tensor
    pairs = job.microbatch_tokens * job.sequence_length * attention.num_heads / tensor
    if job.fused_attention:
        flops = 2.0 * pairs * attention.head_dim
        return flops / (teraflops * 1e12 * speed.attention_fraction)
    products = 4.0 * pairs * attention.head_dim / (teraflops * 1e12 * speed.product_fraction)
    return products + 4 * 2 * pairs / (hardware.memory_gigabytes_per_second * 1e9)


def traffic_seconds(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> float:
    """Move what a layer keeps through memory as often as its pointwise parts do."""
    moved = full_layer_bytes_per_token(job) * job.microbatch_tokens * speed.traffic
    return moved / (hardware.memory_gigabytes_per_second * 1e9)


def head_product(job: TrainingJob) -> Product:
    """Return the product of hidden states and vocabulary rows."""
    rows = job.shape.padded_vocab_size / job.layout.tensor
    return Product(rows=job.microbatch_tokens, columns=rows, depth=job.shape.dim)


def head_traffic_seconds(job: TrainingJob, hardware: Hardware, speed: SoftwareSpeed) -> float:
    """Move the logits as often as a layer's activations, at 12 bytes each."""
    logits = job.microbatch_tokens * job.shape.padded_vocab_size / job.layout.tensor
    return 12.0 * logits * speed.traffic / (hardware.memory_gigabytes_per_second * 1e9)
