"""Layouts whose degrees a test chooses."""

from collections.abc import Mapping
from typing import Any

from components.config.schema.sections import AXES, Parallelism

ORDER = ("pipeline", "data", "expert", "context", "tensor")


def parallelism(**changes: Any) -> Parallelism:
    """One rank, unless a test changes the degrees; one copy of what ZeRO shards."""
    degrees: dict[str, Any] = {axis: changes.get(axis, 1) for axis in AXES}
    values = {
        "data_shard": degrees["data"] * degrees["expert"],
        "engine": "mesh",
        "zero": 0,
        "offload_optimizer": False,
        "overlap": False,
        "bucket_elements": 2**25,
        "expert_dispatch": "all_gather",
        "expert_overlap": 1,
        "expert_bound": None,
        "expert_aware": True,
        "expert_divisor": "ranks",
        "sequence_parallel": True,
        "microbatch_sequences": 1,
        "recompute": "none",
        "recompute_every": 1,
        "compile": "none",
        "gc_every_steps": "never",
        "schedule": "1f1b",
        "stages_per_rank": 1,
        "stage_balance": "layers",
        "rank_order": ORDER,
    }
    return Parallelism(**degrees | values | changes)


def mesh_layout(sizes: Mapping[str, int], **changes: Any) -> Parallelism:
    """Take the degrees of the axes of the mesh, two of which are the data axis."""
    others = dict(sizes)
    shard = others.pop("data_shard", 1)
    data = others.pop("data_replicate", 1) * shard
    shard *= others.get("expert", 1)
    return parallelism(data=data, data_shard=shard, **others, **changes)
