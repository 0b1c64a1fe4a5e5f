"""Fingerprints: hashes of the keys of a recipe, by group."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from components.config.key_groups import KeyGroup, split
from components.config.recipe import Recipe


def compute_fingerprint(recipe: Recipe) -> str:
    """Hash what changes the mathematics: not the layout, the machine or the folders."""
    return fingerprint_of(recipe.whole.model_dump(mode="json"), KeyGroup.MATHEMATICS)


def fingerprint_of(tree: Mapping[str, Any], group: KeyGroup) -> str:
    """Hash one group's leaves: the same for two recipes if and only if none of them differs."""
    return sha256(json.dumps(split(tree)[group], sort_keys=True).encode()).hexdigest()
