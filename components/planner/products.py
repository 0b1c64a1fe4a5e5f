"""Matrix products of a layer and of the head, and the fraction of device speed they reach.

A partial tile or wave takes as long as a full one (NVIDIA, "Matrix Multiplication Background
User's Guide", sections 4.1 to 4.3; it also recommends multiples of 64).
"""

from math import ceil
from typing import NamedTuple

from components.planner.job import TrainingJob

TILE_ROWS, TILE_COLUMNS = 128, 128
ALIGNED = 64
# A width of 14,400 / 8 = 1,800 reached 94.4 TFLOP/s, 13,824 / 8 = 1,728 reached 120.1, both
# otherwise alike (bigscience, chronicles-prequel.md, "tile and wave quantization").
UNALIGNED_FRACTION = 0.79


class Product(NamedTuple):
    """Matrix product of (rows, depth) and (depth, columns), repeated ``times`` times."""

    rows: float
    columns: float
    depth: float
    times: float = 1.0

    @property
    def num_flops(self) -> float:
        return 2.0 * self.rows * self.columns * self.depth * self.times


def filled_fraction(product: Product, units: int, *, together: bool = False) -> float:
    """Return the speed of this product as a fraction of the speed of a well-shaped product.

    With ``together``, a grouped product runs all repetitions from one queue of tiles.
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
    return (*mixing_products(job), *shared_products(job), *mlp_products(job))


def mixing_products(job: TrainingJob) -> tuple[Product, ...]:
    """List the projections of attention and of the linear mixer, if there is one."""
    mixer, tokens = job.shape.layer_type.mixer, job.microbatch_tokens
    if mixer is None:
        return _attention_products(job)
    dim, tensor = job.shape.dim, job.layout.tensor
    columns = mixer.split_width / tensor + mixer.latent_width
    products = [Product(tokens, columns, dim), Product(tokens, dim, mixer.value_width / tensor)]
    if mixer.gate_rank is not None:
        products.append(Product(tokens, mixer.inner_width / tensor, mixer.gate_rank))
    attention = _attention_products(job) if job.shape.layer_type.has_attention else ()
    return (*attention, *products)


def _attention_products(job: TrainingJob) -> tuple[Product, ...]:
    """List the input and output projections of attention."""
    shape, tensor, tokens = job.shape, job.layout.tensor, job.microbatch_tokens
    attention = shape.attention
    queries = attention.num_heads * attention.head_dim
    if attention.key_value_rank is not None:
        return _latent_products(job)
    # With fewer key/value heads than tensor ranks, ranks hold copies.
    keys = max(attention.num_kv_heads / tensor, 1.0) * attention.head_dim
    return (
        Product(tokens, (queries + attention.gate_width) / tensor + 2 * keys, shape.dim),
        Product(rows=tokens, columns=shape.dim, depth=queries / tensor),
    )


def _latent_products(job: TrainingJob) -> tuple[Product, ...]:
    """List the projections of latent attention; ranks replicate those to latent vectors."""
    shape, tensor, tokens = job.shape, job.layout.tensor, job.microbatch_tokens
    attention, dim = shape.attention, shape.dim
    queries, rank = attention.num_heads * attention.head_dim, attention.key_value_rank or 0
    mixed = attention.num_heads * attention.value_width
    return (
        Product(rows=tokens, columns=attention.latent_width, depth=dim),
        Product(rows=tokens, columns=queries / tensor, depth=attention.query_rank or dim),
        Product(rows=tokens, columns=attention.inner_width / tensor, depth=rank),
        Product(rows=tokens, columns=dim, depth=mixed / tensor),
    )


def shared_products(job: TrainingJob) -> tuple[Product, ...]:
    """List the products of the shared expert; its gate is one more column."""
    dim, width = job.shape.dim, (job.shape.mlp.shared_ffn_dim or 0) / job.layout.tensor
    if not width:
        return ()
    ups = 2 if job.shape.mlp.gated else 1
    return (
        Product(job.microbatch_tokens, ups * width + job.shape.mlp.shared_gate, depth=dim),
        Product(rows=job.microbatch_tokens, columns=dim, depth=width),
    )


def mlp_products(job: TrainingJob) -> tuple[Product, ...]:
    """List the MLP's two products, or each expert's on this rank, at even load."""
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
    """Return the product of one MTP depth: per slice if sequence parallel, else replicated."""
    slices = job.layout.tensor if job.layout.sequence_parallel else 1
    dim = job.shape.dim
    return Product(rows=job.microbatch_tokens / slices, columns=dim, depth=2 * dim)


def head_product(job: TrainingJob) -> Product:
    """Return the product of the hidden states and the output embedding."""
    rows = job.shape.padded_vocab_size / job.layout.tensor
    return Product(rows=job.microbatch_tokens, columns=rows, depth=job.shape.dim)
