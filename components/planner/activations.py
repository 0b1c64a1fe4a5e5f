"""What a layer keeps of a microbatch for its backward pass.

Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1 and table 2) count bytes for each token
of a GPT layer of width h: 11 h and 5 a s for attention, 19 h for the MLP, 4 h for the norms.
The same inventory is taken here by tensor, so that grouped heads, gates and experts count too.
"""

from components.planner.job import TrainingJob
from components.planner.schedule import round_microbatches
from components.planner.software import SoftwareMemory


def layer_bytes_per_token(job: TrainingJob) -> float:
    """Count bytes a token that one layer keeps on one tensor rank.

    Tensor parallelism cuts all but the layer's inputs, norms and dropout masks, 10 h in GPT;
    sequence parallelism cuts these as well (section 4.2 of the same paper).
    """
    layout = job.layout
    if job.recompute == "full":
        kept = 2.0 * job.shape.dim
        return kept / layout.tensor if layout.sequence_parallel else kept
    whole, cut = _attention(job), _mlp(job)
    norms = 4.0 * job.shape.dim
    dropped = job.recompute if isinstance(job.recompute, tuple) else ()
    if "attention" in dropped:
        whole = (2.0 * job.shape.dim, 0.0)
    if "mlp" in dropped:
        cut = (2.0 * job.shape.dim, 0.0)
    if "norms" in dropped:
        norms = 0.0
    whole_bytes = norms + whole[0] + cut[0]
    whole_bytes /= layout.tensor if layout.sequence_parallel else 1
    return whole_bytes + (whole[1] + cut[1]) / layout.tensor


def full_layer_bytes_per_token(job: TrainingJob) -> float:
    """Count what one layer holds while a recomputed one is gone through again."""
    attention, mlp = _attention(job), _mlp(job)
    whole = 4.0 * job.shape.dim + attention[0] + mlp[0]
    whole /= job.layout.tensor if job.layout.sequence_parallel else 1
    return whole + (attention[1] + mlp[1]) / job.layout.tensor


def gathered_bytes_per_token(job: TrainingJob, software: SoftwareMemory) -> float:
    """Count what a layer keeps of its blocks' gathered inputs beyond this rank's slice."""
    layout = job.layout
    if not (software.keeps_gathered and layout.sequence_parallel):
        return 0.0
    return 2 * 2.0 * job.shape.dim * (1 - 1 / layout.tensor)


def _attention(job: TrainingJob) -> tuple[float, float]:
    """Bytes a token of attention: what tensor ranks repeat, and what they cut.

    Queries, keys, values and the result, 2 bytes each; rotated queries and keys once more.
    """
    attention, dim = job.shape.attention, job.shape.dim
    queries = attention.num_heads * attention.head_dim
    keys = attention.num_kv_heads * attention.head_dim
    cut = 2.0 * (2 * queries + 2 * keys)
    if job.shape.positions.base is not None:
        cut += 2.0 * (queries + keys)
    if not job.fused_attention:
        cut += 5.0 * attention.num_heads * job.sequence_length
    return (3.0 if job.dropout else 2.0) * dim, cut


def _mlp(job: TrainingJob) -> tuple[float, float]:
    """Bytes a token of the MLP; a token that meets ``top_k`` experts is kept so many times."""
    shape = job.shape
    copies = shape.mlp.top_k or 1
    # What goes into the activation and out of it; a gate adds its own input and the product.
    widths = 4 if shape.mlp.gated else 2
    whole = (3.0 if job.dropout else 2.0) * shape.dim
    routed = 2.0 * 2 * copies * shape.dim if shape.mlp.num_experts else 0.0
    return whole, 2.0 * widths * copies * shape.mlp.ffn_dim + routed


def microbatches_kept(job: TrainingJob, rank: int) -> float:
    """Count microbatches whose activations pipeline rank ``rank`` keeps at most.

    All of them in GPipe; p - rank in 1F1B (Narayanan et al. 2021, arXiv 2104.04473, section
    2.2.1). With several stages a rank, chunks of 1 / v of its layers: interleaved, (v - 1)
    rounds and 2 (p - rank - 1) + 1 more (section 2.2.2, and the warm-up in its Megatron-LM);
    zero bubble, (v - 1) rounds and p, as weight gradients keep the graphs of later ranks longer
    (Qi et al. 2023, arXiv 2401.10241, section 2.3).
    """
    layout, most = job.layout, job.microbatches
    if layout.pipeline == 1:
        return 1.0
    if layout.schedule == "gpipe":
        return float(most)
    if layout.schedule == "1f1b":
        return float(min(layout.pipeline - rank, most))
    chunks = (layout.stages_per_rank - 1) * round_microbatches(layout.pipeline, most)
    if layout.schedule == "zero_bubble":
        chunks += layout.pipeline
    else:
        chunks += 2 * (layout.pipeline - rank - 1) + 1
    return min(chunks, most * layout.stages_per_rank) / layout.stages_per_rank
