"""The row of a recipe in the golden table: its main values, and hashes of all its values.

A hash covers the leaves that the recipe has of its own in one part of its tree. A new key with
a default therefore changes the shared leaves in ``base-SCALE.yaml`` and no row.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from components.config.fingerprint import compute_fingerprint
from components.planner.search import describe_layout
from tests.recipes.compositions import composed, composed_tree
from tests.recipes.differences import CITED, LeafPath, leaves, own_leaves, shared_leaves
from tests.recipes.golden_files import Row

TRAINING = ("budget", "optimizer", "schedule", "precision", "phases", "start")
PARTS = {
    "model": "model", "tokenizer": "data", "data": "data", "parallelism": "layout",
    **dict.fromkeys(TRAINING, "training"), "cluster": "machine", "derived": "derived",
    **dict.fromkeys(("name", *CITED), "record"),
}  # fmt: skip
REST = "rest"  # of the sections that no part names


def identity_row(name: str, scale: str) -> Row:
    """Return the row of a recipe at a scale."""
    tree = composed_tree(name, scale)
    recipe, derived = tree["recipe"], tree["derived"]
    cells = {
        "recipe": name,
        "scale": scale,
        **model_cells(recipe["model"], derived["parameters"]),
        **training_cells(recipe),
        "steps": derived["steps"],
        "ranks": derived["ranks"],
        "layout": describe_layout(composed(name, scale).parallelism),
        "mathematics": compute_fingerprint(composed(name, scale))[:16],
        **part_hashes(tree, scale),
    }
    return {column: as_cell(value) for column, value in cells.items()}


def model_cells(model: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, object]:
    attention, mlp = model["attention"], model["mlp"]
    heads = [attention[key] for key in ("num_heads", "num_kv_heads") if key in attention]
    return {
        "parameters": counts["total"],
        "active": counts["active"],
        "dim": model["dim"],
        "layers": model["num_layers"],
        "heads": "/".join(map(str, heads)),
        "ffn": mlp["ffn_dim"],
        "experts": f"{mlp['num_experts']}/{mlp['top_k']}" if "num_experts" in mlp else "",
        "vocabulary": model["padded_vocab_size"],
    }


def training_cells(recipe: Mapping[str, Any]) -> dict[str, object]:
    budget, optimizer, schedule = (recipe[key] for key in ("budget", "optimizer", "schedule"))
    steps = dict(leaves(schedule))
    warmup = [value for path, value in steps.items() if path[-1] == "warmup_tokens"]
    return {
        "tokenizer": class_name(recipe["tokenizer"]),
        "sources": len(recipe["data"]["shares"]),
        "tokens": budget["total_tokens"],
        "batch": budget["global_batch_tokens"],
        "sequence": budget["sequence_length"],
        "optimizer": class_name(optimizer),
        "lr": optimizer["lr"],
        "weight_decay": optimizer["weight_decay"],
        "schedule": "+".join(
            value.rpartition(".")[2] for path, value in steps.items() if path[-1] == "_target_"
        ),
        "warmup": warmup[0] if warmup else "",
        "compute": recipe["precision"]["compute"],
        "engine": recipe["parallelism"]["engine"],
    }


def class_name(section: Mapping[str, Any]) -> str:
    return str(section["_target_"]).rpartition(".")[2]


def part_hashes(tree: Mapping[str, Any], scale: str) -> dict[str, str]:
    """Return a hash of the own leaves of each part, none if it has no own leaves."""
    parts: dict[str, dict[str, Any]] = {part: {} for part in (*PARTS.values(), REST)}
    for path, value in own_leaves(dict(tree), shared_leaves(scale)).items():
        parts[part_of(path)][".".join(path)] = value
    return {f"{part}_hash": hash_leaves(own) if own else "none" for part, own in parts.items()}


def hash_leaves(own: Mapping[str, Any]) -> str:
    return sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:8]


def part_of(path: LeafPath) -> str:
    section = path[1] if path[0] == "recipe" else path[0]
    return PARTS.get(section, REST)


def as_cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
