"""The matrix products of a layer and of the head, and what part of a device's speed they reach.

A matrix product is cut in tiles that are dealt to the device's units in waves; a last tile or
wave that is not full takes as long as a full one (NVIDIA, "Matrix Multiplication Background
User's Guide", sections 4.1 to 4.3). The same guide asks for multiples of 64 numbers.
"""

from math import ceil
from typing import NamedTuple

from components.planner.job import TrainingJob

TILE_ROWS, TILE_COLUMNS = 128, 128
ALIGNED = 64
# A width of 14,400 / 8 = 1,800 against 13,824 / 8 = 1,728, both otherwise alike: 94.4 against
# 120.1 TFLOP/s (bigscience, chronicles-prequel.md, "tile and wave quantization").
UNALIGNED_FRACTION = 0.79


class Product(NamedTuple):
    """A product of a (rows, depth) and a (depth, columns) matrix, ``times`` over."""

    rows: float
    columns: float
    depth: float
    times: float = 1.0

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.columns * self.depth * self.times


def filled_fraction(product: Product, units: int, *, together: bool = False) -> float:
    """Return what part of the speed of a well-formed product this shape has.

    Products that a grouped one takes ``together`` fill the device's units from one queue.
    """
    rows, columns = max(product.rows, 1.0), max(product.columns, 1.0)
    times = product.times if together else 1.0
    tiles = times * ceil(rows / TILE_ROWS) * ceil(columns / TILE_COLUMNS)
    started = ceil(tiles / units) * units
    filled = times * rows * columns / (TILE_ROWS * TILE_COLUMNS) / started
    aligned = product.columns % ALIGNED == 0 and product.depth % ALIGNED == 0
    return min(1.0, filled) * (1.0 if aligned else UNALIGNED_FRACTION)


def layer_products(job: TrainingJob) -> tuple[Product, ...]:
    """List the products of one layer on one tensor and expert rank."""
    return (*attention_products(job), *shared_products(job), *mlp_products(job))


def attention_products(job: TrainingJob) -> tuple[Product, ...]:
    """List the maps into attention and out of it."""
    shape, tensor, tokens = job.shape, job.layout.tensor, job.microbatch_tokens
    attention = shape.attention
    queries = attention.num_heads * attention.head_dim
    if attention.key_value_rank is not None:
        return _latent_products(job)
    # Where there are fewer key/value heads than tensor ranks, ranks hold copies.
    keys = max(attention.num_kv_heads / tensor, 1.0) * attention.head_dim
    return (
        Product(rows=tokens, columns=queries / tensor + 2 * keys, depth=shape.dim),
        Product(rows=tokens, columns=shape.dim, depth=queries / tensor),
    )


def _latent_products(job: TrainingJob) -> tuple[Product, ...]:
    """List the maps to latent vectors, which tensor ranks repeat, to heads, and out of them."""
    shape, tensor, tokens = job.shape, job.layout.tensor, job.microbatch_tokens
    attention, dim = shape.attention, shape.dim
    queries, rank = attention.num_heads * attention.head_dim, attention.key_value_rank or 0
    mixed = attention.num_heads * attention.values
    return (
        Product(rows=tokens, columns=attention.latent_width, depth=dim),
        Product(rows=tokens, columns=queries / tensor, depth=attention.query_rank or dim),
        Product(rows=tokens, columns=attention.inner_width / tensor, depth=rank),
        Product(rows=tokens, columns=dim, depth=mixed / tensor),
    )


def shared_products(job: TrainingJob) -> tuple[Product, ...]:
    """List the maps of what all tokens go through beside their experts."""
    dim, width = job.shape.dim, (job.shape.mlp.shared_ffn_dim or 0) / job.layout.tensor
    if not width:
        return ()
    ups = 2 if job.shape.mlp.gated else 1
    return (
        Product(rows=job.microbatch_tokens, columns=ups * width, depth=dim),
        Product(rows=job.microbatch_tokens, columns=dim, depth=width),
    )


def mlp_products(job: TrainingJob) -> tuple[Product, ...]:
    """List two products, or a pair for each expert held, whose tokens are spread evenly."""
    shape, tokens = job.shape, job.microbatch_tokens
    width = shape.mlp.ffn_dim / job.layout.tensor
    ups = 2 if shape.mlp.gated else 1
    experts = (shape.mlp.num_experts or 1) / job.layout.expert
    rows = tokens * (shape.mlp.top_k or 1) / experts
    return (
        Product(rows=rows, columns=ups * width, depth=shape.dim, times=experts),
        Product(rows=rows, columns=shape.dim, depth=width, times=experts),
    )


def mtp_product(job: TrainingJob) -> Product:
    """Return one depth's map of two vectors, of each rank's slice or repeated by all."""
    slices = job.layout.tensor if job.layout.sequence_parallel else 1
    dim = job.shape.dim
    return Product(rows=job.microbatch_tokens / slices, columns=dim, depth=2 * dim)


def head_product(job: TrainingJob) -> Product:
    """Return the product of hidden states and vocabulary rows."""
    rows = job.shape.padded_vocab_size / job.layout.tensor
    return Product(rows=job.microbatch_tokens, columns=rows, depth=job.shape.dim)
