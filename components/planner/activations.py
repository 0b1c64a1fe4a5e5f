"""Activation memory: bytes that a layer keeps of a microbatch, and number of microbatches kept.

Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1 and table 2) count bytes per token of a
GPT layer of width h: 11 h and 5 a s for attention, 19 h for the MLP, 4 h for the norms. This
module counts the same list tensor by tensor, to include grouped heads, gates and experts.
"""

import math
from collections.abc import Sequence

from components.config.model_spec.mixers import KimiDeltaSpec
from components.config.schema.sections import Recompute
from components.config.stages import V_SCHEDULES
from components.planner.communication import key_value_bytes
from components.planner.job import TrainingJob
from components.planner.schedule import round_microbatches


def layer_bytes_per_token(job: TrainingJob, recompute: Recompute | None = None) -> float:
    """Count the bytes per token that one layer keeps on one tensor rank.

    Tensor parallelism splits all but the layer's inputs, norms and dropout masks, which
    sequence parallelism splits (section 4.2). ``recompute="none"``: the layer while it is
    recomputed.
    """
    layout, hidden = job.layout, 2.0 * job.shape.dim
    again = job.layout.recompute if recompute is None else recompute
    if again == "full":
        return hidden / layout.tensor if layout.sequence_parallel else hidden
    if again == "selective":
        return _count_selective_bytes(job)
    dropped = again if isinstance(again, tuple) else ()
    layer = job.shape.layer_type
    attention, mixer, mlp = _attention(job), _mixer(job), _mlp(job)
    if "attention" in dropped:
        attention = (hidden * layer.has_attention, 0.0)
        mixer = (hidden * (layer.mixer is not None), 0.0)
    if "mlp" in dropped:
        mlp = (hidden * layer.has_mlp, 0.0)
    norms = job.shape.norms_per_layer - _count_moved_norms(job, dropped)
    whole = norms * hidden + attention[0] + mixer[0] + mlp[0]
    whole /= layout.tensor if layout.sequence_parallel else 1
    return whole + (attention[1] + mixer[1] + mlp[1]) / layout.tensor


def _count_moved_norms(job: TrainingJob, dropped: Sequence[str]) -> int:
    """Count the norms that a recomputed part calls: neither stores the norm's output.

    A part calls the norm before it, if it is a branch of its own. Other recomputed norms store
    their input, as norms without recomputation do.
    """
    if "norms" not in dropped or job.shape.norm_placement == "after":
        return 0
    moving = {("mlp",)} if "mlp" in dropped else set()
    moving |= {("attention",), ("mixer",)} if "attention" in dropped else set()
    return sum(branch in moving for branch in job.shape.layer_type.branches)


def _count_selective_bytes(job: TrainingJob) -> float:
    """Count bytes per token that selective recomputation keeps.

    These are the layer's input and the results of products, attention, experts and collectives.
    Not kept are the last addition to the layer's input (unless a norm reads it), partial sums
    that a collective reduces (`components.model.checkpoint_storage`), and gathered inputs of
    blocks. Attention adds 4 bytes per head, the choice of an expert 12. Unfused attention
    multiplies queries and keys in float32 and stores the product.
    """
    shape, layout, hidden = job.shape, job.layout, 2.0 * job.shape.dim
    attention, copies = shape.attention, (shape.mlp.top_k or 1) * job.expert_padding
    # The input and additions but the last. A norm after the MLP also needs the MLP's output.
    branches = len(shape.layer_type.branches)
    whole = (branches + (shape.norm_placement != "before")) * hidden
    scores = 1 if job.fused_attention else job.sequence_length
    sharded = 2.0 * _attention_results(job) + 4.0 * attention.num_heads * scores
    sharded += _keys_and_values(job) * layout.context * (layout.context > 1)
    if (mixer := shape.layer_type.mixer) is not None:
        sharded += 2.0 * (mixer.split_width + mixer.latent_width + mixer.inner_width)
        sharded += _scan_bytes(job)
    sharded += 2.0 * (2 if shape.mlp.gated else 1) * copies * shape.mlp.ffn_dim
    if shape.mlp.num_experts:
        sharded += 2.0 * shape.mlp.num_experts + 12.0 * copies
        sharded += hidden * copies * shape.mlp.bias
        sharded += 2.0 * (2 if shape.mlp.gated else 1) * (shape.mlp.shared_ffn_dim or 0)
        sharded += _count_gate_bytes(job)
    if layout.expert > 1:
        gathers = layout.expert_dispatch == "all_gather"
        sharded += hidden * (layout.expert if gathers else copies)
    whole /= layout.tensor if layout.sequence_parallel else 1
    return whole + sharded / layout.tensor


def _keys_and_values(job: TrainingJob) -> float:
    """Count bytes per token of keys and values, times the tensor degree that divides them."""
    return key_value_bytes(job) / job.microbatch_tokens * job.layout.tensor


def _count_context_bytes(job: TrainingJob) -> float:
    """Count activation bytes per token that context parallelism adds to attention.

    A rank stores the keys and values of the other ranks. Kernels other than flex attention
    process two chunks of queries; autograd stores each output and their concatenation.
    """
    attention, others = job.shape.attention, job.layout.context - 1
    result = attention.num_heads * job.value_width if others and job.uses_sdpa else 0
    return others * _keys_and_values(job) + 2.0 * result


def _attention_results(job: TrainingJob) -> float:
    """Count the elements per token of attention's products; ranks replicate latent vectors."""
    attention = job.shape.attention
    heads, width = attention.num_heads, attention.head_dim
    if attention.key_value_rank is None:
        return 2.0 * (heads + attention.num_kv_heads) * width + attention.gate_width
    results = heads * (width + job.value_width) + attention.inner_width
    return results + attention.latent_width * job.layout.tensor


def _latent(job: TrainingJob) -> float:
    """Count the bytes per token of latent attention, as the kernel reads and writes tensors.

    Latent vectors count before and after norms, and on each tensor rank. With padded values, a
    copy without padding is stored; otherwise the values are a view of the projection's output.
    """
    attention, heads = job.shape.attention, job.shape.attention.num_heads
    normed = attention.latent_width - attention.rotary_dim
    results = 2 * heads * attention.head_dim + heads * job.value_width
    if job.value_width > attention.value_width:
        results += heads * (job.value_width + attention.value_width)
    else:
        results += attention.inner_width
    return 2.0 * (results + (attention.latent_width + normed) * job.layout.tensor)


def _attention(job: TrainingJob) -> tuple[float, float]:
    """Count the bytes per token of attention: replicated on tensor ranks, and split among them.

    Queries, keys, values and result have 2 bytes each. Rotation adds a copy of queries and
    keys. An output gate adds its sigmoid and the gated result. With sinks, a single pass keeps
    its result before their share is removed.
    """
    attention, dim = job.shape.attention, job.shape.dim
    if not job.shape.layer_type.has_attention:
        return 0.0, 0.0
    if attention.key_value_rank is not None:
        return (3.0 if job.dropout else 2.0) * dim, _latent(job) + _count_context_bytes(job)
    queries = attention.num_heads * attention.head_dim
    keys = attention.num_kv_heads * attention.head_dim
    sharded = 2.0 * (2 * queries + 2 * keys) + _count_context_bytes(job)
    rotated = job.shape.positions.turned_layers(job.shape.num_layers) / job.shape.num_layers
    sharded += 2.0 * rotated * (queries + keys) + 2.0 * 2 * attention.gate_width
    if attention.qk_norm and not attention.norms_heads and job.layout.tensor > 1:
        # A norm over all ranks' heads stores two float32 copies. Otherwise the norm's input is
        # stored, but nothing of the rotation: the total is the same.
        sharded += 6.0 * (queries + keys)
    # Each pass keeps its result, and the combined result is one more.
    sharded += 2.0 * 2 * (job.attention_passes - 1) * queries
    if attention.sinks:
        sharded += 2.0 * (2 - job.attention_passes) * queries
    if not job.fused_attention:
        sharded += 5.0 * attention.num_heads * job.sequence_length
    return (3.0 if job.dropout else 2.0) * dim, sharded


def _mixer(job: TrainingJob) -> tuple[float, float]:
    """Count the bytes per token of a linear mixer: input, convolutions, gates and scan.

    A channel of a convolution is kept three times in 2 bytes: its input, the input after the
    earlier tokens, and the input of the SiLU. The delta rule keeps queries and keys in float32
    before and after they get length 1. Norm and gate keep 18 or 26 bytes per value.
    """
    mixer = job.shape.layer_type.mixer
    if mixer is None:
        return 0.0, 0.0
    corrects = mixer.state_products == 3
    channels = 6.0 * mixer.conv_channels + (16.0 if corrects else 8.0) * mixer.key_width
    gates = (18.0 if corrects else 26.0) * mixer.value_width
    latent = 2.0 * (mixer.latent_width + mixer.inner_width)
    whole = (3.0 if job.dropout else 2.0) * job.shape.dim
    return whole, channels + gates + latent + _scan_bytes(job)


def _scan_bytes(job: TrainingJob) -> float:
    """Count the bytes per token of a chunked scan, all float32 (`components.model.mixers`).

    A token has decays, products and weights for all tokens of its chunk. The delta rule adds a
    triangular system and its solution. With a decay per channel, channels have decays and
    products for the tokens of a block, and two and a half for each time that blocks join. A
    chunk keeps the state before it. A test compares the count with autograd's.
    """
    mixer = job.shape.layer_type.mixer
    if mixer is None:
        return 0.0
    heads, groups, chunk = mixer.num_heads, mixer.key_heads, mixer.chunk_tokens
    keys, values = heads * mixer.key_dim, mixer.value_width
    states = keys * mixer.value_dim / chunk
    if mixer.state_products == 2:
        return 4.0 * (chunk * (2 * heads + groups) + 2 * keys + values + states)
    if not isinstance(mixer, KimiDeltaSpec):
        pairs, channels = 4 * heads + 2 * groups, 4.0 * keys
    else:
        joins = math.log2(chunk / mixer.direct_tokens)
        pairs, channels = 4 * heads, (10 + 2 * mixer.direct_tokens + 2.5 * joins) * keys
    return 4.0 * (chunk * pairs + channels + 3 * values + states)


def _mlp(job: TrainingJob) -> tuple[float, float]:
    """Count the bytes per token of the MLP, including the shared expert and its gate."""
    shape = job.shape
    whole = (3.0 if job.dropout else 2.0) * shape.dim * shape.layer_type.has_mlp
    shared = 2.0 * _inner_tensors(job) * (shape.mlp.shared_ffn_dim or 0)
    return whole, _routed(job) + shared + _count_gate_bytes(job)


def _count_gate_bytes(job: TrainingJob) -> float:
    """Count the bytes per token of the shared expert's output and its gate, if it has one."""
    return 2.0 * (job.shape.dim + 1) if job.shape.mlp.shared_gate else 0.0


def _routed(job: TrainingJob) -> float:
    """Count the bytes per token of the MLP alone; with experts, of each (token, expert) pair.

    A pair keeps its row, and the last product's input before and after the router weight. With
    biases, the weight multiplies the last product's result, which is kept with the pair's
    expert.
    """
    shape = job.shape
    if not shape.mlp.num_experts:
        return 2.0 * _inner_tensors(job) * shape.mlp.ffn_dim
    pairs = (shape.mlp.top_k or 1) * job.expert_padding
    stored = 2.0 * (_inner_tensors(job) * shape.mlp.ffn_dim + shape.dim)
    weighted = 2.0 * shape.dim + 8.0 if shape.mlp.bias else 2.0 * shape.mlp.ffn_dim
    return pairs * (stored + weighted)


def moved_bytes_per_token(job: TrainingJob, load: float) -> float:
    """Count the bytes per token of kept tensors that a layer's pointwise operations move.

    ``load`` is the fullest expert rank's share over the mean. A pair's row moves like two such
    tensors: 20 bytes per number. Collectives move the tensors of context parallelism.
    """
    pairs, shape = (job.shape.mlp.top_k or 1) * job.expert_padding, job.shape
    rows = 2 * shape.dim if shape.mlp.num_experts else 0
    moved = 2.0 * pairs * (_inner_tensors(job) * shape.mlp.ffn_dim + rows)
    total = layer_bytes_per_token(job, "none")
    total += (load * moved - _routed(job)) / job.layout.tensor
    return total - _count_context_bytes(job) / job.layout.tensor


def _inner_tensors(job: TrainingJob) -> int:
    """Count the activation's input and output. A gate adds its own input and the product.

    A clamped SwiGLU keeps its two inputs and the result.
    """
    mlp = job.shape.mlp
    return 3 if mlp.is_clamped else 4 if mlp.gated else 2


def count_stored_microbatches(job: TrainingJob, rank: int) -> float:
    """Return the maximum number of microbatches whose activations pipeline rank ``rank`` keeps.

    GPipe keeps all. 1F1B keeps p - rank (Narayanan et al. 2021, arXiv 2104.04473, section
    2.2.1). With several stages per rank, chunks of 1 / v of its layers count. Interleaved keeps
    (v - 1) rounds plus 2 (p - rank - 1) + 1 (section 2.2.2, and the warm-up in its
    Megatron-LM). Zero bubble keeps (v - 1) rounds plus p, because weight gradients keep the
    graphs of later ranks longer (Qi et al. 2023, arXiv 2401.10241, section 2.3), but p - rank
    with whole backward passes. In a V schedule each rank keeps 2 p chunks, the first ranks
    fewer of few microbatches (section 6 there). DualPipeV keeps one more (DeepSeek-V3's table
    2: PP + 1).
    """
    layout, most = job.layout, job.microbatches
    if layout.pipeline == 1:
        return 1.0
    if layout.schedule == "gpipe":
        return float(most)
    if layout.schedule == "1f1b":
        return float(min(layout.pipeline - rank, most))
    if layout.schedule in V_SCHEDULES:
        full = 2 * layout.pipeline
        return (full + 1 if layout.schedule == "dualpipev" else min(full, most + rank + 1)) / 2
    interleaved = 2 * (layout.pipeline - rank - 1) + 1
    stages = job.stage_placement.stages_per_rank
    zero_bubble = layout.pipeline - (0 if job.splits_backward else rank)
    chunks = (stages - 1) * round_microbatches(layout.pipeline, most)
    chunks += zero_bubble if layout.schedule == "zero_bubble" else interleaved
    return min(chunks, most * stages) / stages
