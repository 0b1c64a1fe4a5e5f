"""Site cards for tests, as a run on two nodes of JUWELS Booster would write them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.run.site_card import make_figure, notice_of, render_card

TWO_NODES = {"nodes": 2, "ranks": 8}
ONE_NODE = {"nodes": 1, "ranks": 4}
LARGE = 1 << 28


def card_tree(kind: str = "cuda", **run: Any) -> dict[str, Any]:
    """Return the content of a card without its hash."""
    return {
        "card": 1, "notice": notice_of(kind), "date": "2027-03-01",
        "run": {
            "recipe": "teuken7b", "cluster": "juwels", "scale": "full", "mathematics": "a" * 64,
            "layout": "b" * 64, "commit": "c" * 40,
            "sizes": {
                "nodes": 2, "devices_per_node": 4, "data": 2, "tensor": 2, "pipeline": 2,
                "expert": 1, "context": 1, "num_layers": 16, "microbatch_sequences": 1,
                "global_batch_tokens": 65_536,
            },
            **run,
        },
        "versions": {"python": "3.11.7", "torch": "2.13.0+cu126"},
        "machine": {
            "kind": kind, "device": "NVIDIA A100-SXM4-40GB", "memory_bytes": 42_000_000_000,
            "processor": "AMD EPYC 7402 24-Core Processor", "cores": 48,
        },
        "figures": [
            make_figure("product", 250.0, dtype="bfloat16"),
            make_figure("copy", 1_300.0, bytes=LARGE),
            make_figure("latency", 2e-5, bytes=4, **ONE_NODE),
            make_figure("all_reduce", 10.0, bytes=LARGE >> 8, **ONE_NODE),
            make_figure("all_reduce", 220.0, bytes=LARGE, **ONE_NODE),
            make_figure("all_gather", 150.0, bytes=LARGE, **ONE_NODE),
            make_figure("all_reduce", 70.0, bytes=LARGE, **TWO_NODES), make_figure("step", 1.5),
            make_figure("peak_memory", 30e9),
        ],
    }  # fmt: skip


def write_card(file: Path, tree: Mapping[str, Any] | None = None) -> Path:
    """Write a card with its hash."""
    file.write_text(render_card(card_tree() if tree is None else tree), "utf-8")
    return file
