"""A user's own small recipe, over its own text, with some of its keys changed."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.recipe import Recipe

TOKENS = 204_800
FILE = "own.yaml"
GROUPS = {"model": "teuken7b", "tokenizer": "bpe_gpt2", "schedule": "cosine"}
OWN: dict[str, Any] = yaml.safe_load("""
name: own
description: A small model of my own text.
reference_cluster: juwels
model:
  dim: 128
  num_layers: 2
  vocab_size: 1_000
  padded_vocab_size: 1_024
  attention: {num_heads: 2, num_kv_heads: 1, head_dim: 64}
  mlp: {ffn_dim: 352}
tokenizer: {vocab_size: 1_000}
data: {shares: {mine: 1.0}, sources: {mine: {files: [text.txt]}}}
budget:
  total_tokens: 204_800
  global_batch_tokens: 1_024
  sequence_length: 128
  seed: 1
  ramp_up: {start_tokens: 256, increment_tokens: 256, over_tokens: 8_192}
optimizer: {lr: 3.333e-4, clip_after_tokens: 1_000}
schedule: {total_tokens: 204_800, warmup_tokens: 20_000, warmup_from: 0.0, start: 1.0, end: 0.1}
parallelism: {data: 1, microbatch_sequences: 2}
checkpoint: {every_tokens: 4_096}
evaluation: {every_tokens: 8_192}
""")


def compose_own(changed: Mapping[str, Any], *words: str) -> Recipe:
    """Write the recipe into the working folder and compose it there.

    A changed key without a dot that is a group's name chooses its file.
    """
    chosen = GROUPS | {key: one for key, one in changed.items() if key in GROUPS}
    defaults = [{f"override /{group}": option} for group, option in chosen.items()]
    tree = {"defaults": defaults, **deepcopy(OWN)}
    for path, value in changed.items():
        if path in GROUPS:
            continue
        *parents, last = path.split(".")
        here = tree
        for step in parents:
            here = here[step]
        here[last] = value
    Path(FILE).write_text(yaml.safe_dump(tree))
    return compose_recipe(read_point([f"recipe=./{FILE}", *words]))
