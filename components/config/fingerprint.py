"""Fingerprints: hashes of the keys of a recipe, per key group."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from components.config.key_groups import KeyGroup, split_by_group
from components.config.recipe import Recipe
from components.config.schema.earlier_names import restore_names


def compute_fingerprint(recipe: Recipe) -> str:
    """Return the hash of the mathematics of a recipe, without layout, machine and record."""
    return fingerprint_of(recipe.whole_run.model_dump(mode="json"), KeyGroup.MATHEMATICS)


def fingerprint_of(tree: Mapping[str, Any], group: KeyGroup) -> str:
    """Return the hash of one key group: equal if and only if all its values are equal."""
    leaves = restore_names(split_by_group(tree)[group])
    return sha256(json.dumps(leaves, sort_keys=True).encode()).hexdigest()
