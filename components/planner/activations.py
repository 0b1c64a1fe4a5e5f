"""What one layer keeps of a microbatch for its backward pass, and how many are kept.

Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1 and table 2) count bytes for each token
of a GPT layer of width h: 11 h and 5 a s for attention, 19 h for the MLP, 4 h for the norms.
The same inventory is taken here by tensor, so that grouped heads, gates and experts count too.
"""

from components.config.schema.sections import Recompute
from components.config.stages import V_SCHEDULES
from components.planner.communication import key_value_bytes
from components.planner.job import TrainingJob
from components.planner.schedule import round_microbatches


def layer_bytes_per_token(job: TrainingJob, recompute: Recompute | None = None) -> float:
    """Count bytes a token that one layer keeps on one tensor rank.

    Tensor parallelism cuts all but the layer's inputs, norms and dropout masks, 10 h in GPT;
    sequence parallelism cuts these as well (section 4.2 of the same paper). With ``recompute``
    "none" it is what a recomputed layer holds while it is gone through again.
    """
    layout, hidden = job.layout, 2.0 * job.shape.dim
    again = job.layout.recompute if recompute is None else recompute
    if again == "full":
        return hidden / layout.tensor if layout.sequence_parallel else hidden
    if again == "selective":
        return _kept_selectively(job)
    dropped = again if isinstance(again, tuple) else ()
    attention = (hidden, 0.0) if "attention" in dropped else _attention(job)
    mlp = (hidden, 0.0) if "mlp" in dropped else _mlp(job)
    # What a norm after a branch is fed stays, for the norm alone asks for it.
    norms = job.shape.norms_per_layer - (2 if "norms" in dropped else 0)
    whole = norms * hidden + attention[0] + mlp[0]
    whole /= layout.tensor if layout.sequence_parallel else 1
    return whole + (attention[1] + mlp[1]) / layout.tensor


def _kept_selectively(job: TrainingJob) -> float:
    """Count the layer's input, and results of products, attention, experts and collectives.

    What a layer adds to its input last, unless a norm reads it, and shares that a collective
    adds up, are not kept (`components.model.kept`), nor what blocks gather; 4 bytes a head are
    attention's own, 12 the choice of an expert. Unfused attention multiplies queries and keys
    in float32, and stores the product.
    """
    shape, layout, hidden = job.shape, job.layout, 2.0 * job.shape.dim
    attention, copies = shape.attention, (shape.mlp.top_k or 1) * job.expert_padding
    # What comes in, and what attention adds; a norm after the MLP asks what that gave.
    whole = (2 if shape.norm_placement == "before" else 3) * hidden
    scores = 1 if job.fused_attention else job.sequence_length
    cut = 2.0 * _attention_results(job) + 4.0 * attention.num_heads * scores
    cut += _keys_and_values(job) * layout.context * (layout.context > 1)
    cut += 2.0 * (2 if shape.mlp.gated else 1) * copies * shape.mlp.ffn_dim
    if shape.mlp.num_experts:
        cut += 2.0 * shape.mlp.num_experts + 12.0 * copies
        cut += 2.0 * (2 if shape.mlp.gated else 1) * (shape.mlp.shared_ffn_dim or 0)
    if layout.expert > 1:
        gathers = layout.expert_dispatch == "all_gather"
        cut += hidden * (layout.expert if gathers else copies)
    whole /= layout.tensor if layout.sequence_parallel else 1
    return whole + cut / layout.tensor


def _keys_and_values(job: TrainingJob) -> float:
    """Count bytes per token of keys and values, times the tensor degree that divides them."""
    return key_value_bytes(job) / job.microbatch_tokens * job.layout.tensor


def _kept_by_context(job: TrainingJob) -> float:
    """Count activation bytes per token that context parallelism adds to attention.

    A rank stores the keys and values of the other ranks. Kernels other than flex attention
    process a rank's two chunks of queries separately, and autograd stores the output of each
    chunk in addition to their concatenation.
    """
    attention, others = job.shape.attention, job.layout.context - 1
    result = attention.num_heads * job.value_width if others and job.uses_sdpa else 0
    return others * _keys_and_values(job) + 2.0 * result


def _attention_results(job: TrainingJob) -> float:
    """Count what a token's products of attention give; latent vectors no tensor rank cuts."""
    attention = job.shape.attention
    heads, width = attention.num_heads, attention.head_dim
    if attention.key_value_rank is None:
        return 2.0 * (heads + attention.num_kv_heads) * width
    made = heads * (width + job.value_width) + attention.inner_width
    return made + attention.latent_width * job.layout.tensor


def _latent(job: TrainingJob) -> float:
    """Bytes a token of latent attention: latent vectors before and after their norms, whole.

    Queries, keys and values as the kernel takes them, and its result; where values are filled
    up, a copy of what is in the result; else values are a part of what they were made with.
    """
    attention, heads = job.shape.attention, job.shape.attention.num_heads
    normed = attention.latent_width - attention.rotary_dim
    made = 2 * heads * attention.head_dim + heads * job.value_width
    if job.value_width > attention.values:
        made += heads * (job.value_width + attention.values)
    else:
        made += attention.inner_width
    return 2.0 * (made + (attention.latent_width + normed) * job.layout.tensor)


def _attention(job: TrainingJob) -> tuple[float, float]:
    """Bytes a token of attention: what tensor ranks repeat, and what they cut.

    Queries, keys, values and the result, 2 bytes each; rotated queries and keys once more, in
    the mean over layers where some do not rotate.
    """
    attention, dim = job.shape.attention, job.shape.dim
    if attention.key_value_rank is not None:
        return (3.0 if job.dropout else 2.0) * dim, _latent(job) + _kept_by_context(job)
    queries = attention.num_heads * attention.head_dim
    keys = attention.num_kv_heads * attention.head_dim
    cut = 2.0 * (2 * queries + 2 * keys) + _kept_by_context(job)
    turned = job.shape.positions.turned_layers(job.shape.num_layers) / job.shape.num_layers
    cut += 2.0 * turned * (queries + keys)
    if attention.qk_norm and not attention.norms_heads and job.layout.tensor > 1:
        # A norm over all ranks' heads keeps two float32 copies. Else what goes into a norm is
        # kept, and of the rotation nothing: as much as is counted.
        cut += 6.0 * (queries + keys)
    # Each pass keeps its result, and what is made of them is one more.
    cut += 2.0 * 2 * (job.attention_passes - 1) * queries
    if not job.fused_attention:
        cut += 5.0 * attention.num_heads * job.sequence_length
    return (3.0 if job.dropout else 2.0) * dim, cut


def _mlp(job: TrainingJob) -> tuple[float, float]:
    """Bytes a token of the MLP, with what all tokens go through beside their experts."""
    shape = job.shape
    whole = (3.0 if job.dropout else 2.0) * shape.dim
    shared = 2.0 * _inner_tensors(job) * (shape.mlp.shared_ffn_dim or 0)
    return whole, _routed(job) + shared


def _routed(job: TrainingJob) -> float:
    """Count bytes a token of the MLP alone; a token of ``top_k`` experts is kept as often.

    Of a pair of token and expert its row is kept, and once more what goes into the last
    product: before and after its weight.
    """
    shape = job.shape
    if not shape.mlp.num_experts:
        return 2.0 * _inner_tensors(job) * shape.mlp.ffn_dim
    pairs = (shape.mlp.top_k or 1) * job.expert_padding
    return 2.0 * pairs * ((_inner_tensors(job) + 1) * shape.mlp.ffn_dim + shape.dim)


def moved_bytes_per_token(job: TrainingJob, load: float) -> float:
    """Count bytes a token that a layer's pointwise parts move, in tensors that it keeps.

    ``load`` is the share of the fullest expert rank over the mean. A pair's row is moved as
    often as two of these: 20 bytes a number, counted in the code. What context parallelism
    adds is moved by collectives.
    """
    pairs, shape = (job.shape.mlp.top_k or 1) * job.expert_padding, job.shape
    rows = 2 * shape.dim if shape.mlp.num_experts else 0
    moved = 2.0 * pairs * (_inner_tensors(job) * shape.mlp.ffn_dim + rows)
    kept = layer_bytes_per_token(job, "none")
    kept += (load * moved - _routed(job)) / job.layout.tensor
    return kept - _kept_by_context(job) / job.layout.tensor


def _inner_tensors(job: TrainingJob) -> int:
    """Count what goes into the activation and out; a gate adds its input and the product."""
    return 4 if job.shape.mlp.gated else 2


def microbatches_kept(job: TrainingJob, rank: int) -> float:
    """Count microbatches whose activations pipeline rank ``rank`` keeps at most.

    All of them in GPipe; p - rank in 1F1B (Narayanan et al. 2021, arXiv 2104.04473, section
    2.2.1). With several stages a rank, chunks of 1 / v of its layers: interleaved, (v - 1)
    rounds and 2 (p - rank - 1) + 1 more (section 2.2.2, and the warm-up in its Megatron-LM);
    zero bubble, (v - 1) rounds and p, as weight gradients keep the graphs of later ranks longer
    (Qi et al. 2023, arXiv 2401.10241, section 2.3), but p - rank where backward passes are
    whole. In a V each rank keeps 2 p chunks, with few microbatches the first ranks less
    (section 6 of the same paper); DualPipeV one more (DeepSeek-V3's table 2: PP + 1).
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
    interleaved, stages = 2 * (layout.pipeline - rank - 1) + 1, job.placement.stages_per_rank
    zero_bubble = layout.pipeline - (0 if job.splits_backward else rank)
    chunks = (stages - 1) * round_microbatches(layout.pipeline, most)
    chunks += zero_bubble if layout.schedule == "zero_bubble" else interleaved
    return min(chunks, most * stages) / stages
