"""Layouts whose degrees a test chooses."""

from collections.abc import Mapping
from typing import Any

from components.config.schema.sections import AXES, Parallelism

ORDER = ("pipeline", "data", "expert", "context", "tensor")


def parallelism(**changes: Any) -> Parallelism:
    """Return a layout of one rank with ``changes``; ZeRO shards over all data ranks."""
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
        "expert_capacity_factor": None,
        "expert_aware": True,
        "expert_grad_average": "ranks",
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
    """Return the layout with these mesh sizes; the data axis spans two mesh axes."""
    others = dict(sizes)
    shard = others.pop("data_shard", 1)
    data = others.pop("data_replicate", 1) * shard
    shard *= others.get("expert", 1)
    return parallelism(data=data, data_shard=shard, **others, **changes)
