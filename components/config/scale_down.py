"""Scale a recipe down to a miniature that keeps all of its features.

Width, depth, vocabulary, sequence, batch and tokens shrink; head grouping, positions, norm,
activation, tying, routing, float8 and the schedule's shape stay. Keys that the user named do
not change, and no value increases. ``conf/scale/`` contains the sizes.
"""

from collections.abc import Mapping
from typing import Any

from components.config.model_spec.layers import shorten_pattern, split_pattern
from components.config.placeholder_text import use_placeholder_text
from components.config.rules.engine import FLOAT8, MULTIPLE
from components.config.rules.parametrization import base_multiple
from components.config.schema.sections import Shrink
from components.config.user_overrides import MutableTree, UserOverrides, iterate_leaves

FFN_MULTIPLE = 8  # small matrices fill whole vector registers


def scale_down(
    tree: MutableTree, rule: Shrink, named: UserOverrides, full: MutableTree
) -> None:
    """Shrink ``tree`` in place, before `deal_ranks` sets its degrees.

    Lengths and rates keep their proportion to ``full``, the recipe without the user's keys.
    """
    model: Any = tree["model"]
    pattern = split_pattern(model.get("pattern")) or []
    layers = max(min(rule.num_layers, model["num_layers"]), len({*pattern}))
    named.set_default(tree, "model.num_layers", layers)
    if len(pattern) > model["num_layers"]:
        shorter = shorten_pattern(pattern, model["num_layers"])
        named.set_default(tree, "model.pattern", shorter)
    every = min(tree["parallelism"]["recompute_every"], model["num_layers"])
    named.set_default(tree, "parallelism.recompute_every", every)
    if skip_every := model["positions"].get("skip_every"):  # at least one layer skips positions
        named.set_default(
            tree, "model.positions.skip_every", min(skip_every, model["num_layers"])
        )
    if full["model"]["dim"] > rule.dim:
        _narrow(tree, rule, named, full["model"])
    if experts := full["model"]["mlp"].get("num_experts"):
        # A token uses the same fraction of fewer experts, but at least two if it used several.
        top_k = full["model"]["mlp"]["top_k"]
        named.set_default(tree, "model.mlp.num_experts", min(rule.num_experts, experts))
        part = round(top_k * model["mlp"]["num_experts"] / experts)
        named.set_default(tree, "model.mlp.top_k", min(top_k, max(min(2, top_k), part)))
        _shrink_groups(model, full["model"]["mlp"], named, tree)
    _shrink_vocabulary(tree, rule, named, full)
    _shrink_budget(tree, rule, named, full)
    _shrink_windows(tree, named, full)
    if tree["precision"]["compute"] != FLOAT8:  # devices without float8 emulate it
        named.set_default(tree, "precision.compute", "auto")
        for key in ("accumulate", "reduce"):
            if tree["precision"][key] == "float16":  # valid only for float16 products
                named.set_default(tree, f"precision.{key}", "float32")
    use_placeholder_text(tree, rule, named)


def largest_microbatch(tree: MutableTree, rule: Shrink, full: MutableTree) -> int:
    """Return the largest microbatch in sequences: the rule's, or with the recipe's tokens."""
    sequences: int = full["parallelism"]["microbatch_sequences"]
    before, length = (int(config["budget"]["sequence_length"]) for config in (full, tree))
    return max(1, min(rule.microbatch_sequences, sequences * before // length))


def _narrow(tree: MutableTree, rule: Shrink, named: UserOverrides, full: Any) -> None:
    """Shrink the width and the sizes that depend on it: heads, feed-forward, learning rate."""
    model: Any = tree["model"]
    heads, groups = full["attention"]["num_heads"], full["attention"]["num_kv_heads"]
    named.set_default(tree, "model.dim", rule.dim)
    # If a model has few, large heads, keep their number and shrink their width.
    widest = model["dim"] // heads // FFN_MULTIPLE * FFN_MULTIPLE
    head_dim = min(max(rule.head_dim, widest), full["attention"]["head_dim"])
    named.set_default(tree, "model.attention.head_dim", head_dim)
    small_heads = max(1, min(heads, model["dim"] // model["attention"]["head_dim"]))
    named.set_default(tree, "model.attention.num_heads", small_heads)
    num_heads = model["attention"]["num_heads"]
    most = num_heads if groups == heads else min(groups, max(1, num_heads // 2))
    grouped = max(count for count in range(1, most + 1) if num_heads % count == 0)
    named.set_default(tree, "model.attention.num_kv_heads", grouped)
    _narrow_attention(tree, named, full)
    _narrow_mixers(tree, named, full)
    multiple = MULTIPLE if tree["precision"]["compute"] == FLOAT8 else FFN_MULTIPLE
    for path, width in {
        "mlp.ffn_dim": full["mlp"]["ffn_dim"],
        "mlp.shared_ffn_dim": full["mlp"].get("shared_ffn_dim"),
        "dense_mlp.ffn_dim": (full.get("dense_mlp") or {}).get("ffn_dim"),
    }.items():
        if width is not None:
            narrow = round(width / full["dim"] * model["dim"] / multiple) * multiple
            named.set_default(tree, f"model.{path}", min(max(narrow, multiple), width))
    base = model.get("parametrization") or {}
    if "base_dim" in base:  # its learning rates apply at any width
        multiple = base_multiple(model["dim"], num_heads, model["attention"]["num_kv_heads"])
        whole = max(1, round(base["base_dim"] / multiple)) * multiple
        named.set_default(tree, "model.parametrization.base_dim", whole)
        return
    lr = tree["optimizer"]["lr"] * (full["dim"] / model["dim"]) ** rule.lr_width_exponent
    named.set_default(tree, "optimizer.lr", float(f"{lr:.3g}"))


def _narrow_attention(tree: MutableTree, named: UserOverrides, full: Any) -> None:
    """Shrink sizes within a head with the head, and low ranks with the model's width."""
    model: Any = tree["model"]
    for key in ("scale_dim", "rotary_dim", "value_dim", "query_rank", "key_value_rank"):
        now, before = model["dim"], full["dim"]
        if key.endswith("dim"):
            now, before = (config["attention"]["head_dim"] for config in (model, full))
        if (size := full["attention"].get(key)) is not None:
            narrow = max(2, round(size * now / before / 2) * 2)  # rotary channels come in pairs
            named.set_default(tree, f"model.attention.{key}", min(size, narrow))


def _narrow_mixers(tree: MutableTree, named: UserOverrides, full: Any) -> None:
    model: Any = tree["model"]
    now, before = (config["attention"]["head_dim"] for config in (model, full))
    for name, mixer in full.get("mixers", {}).items():
        sizes = narrow_mixer(mixer, heads=now / before, width=model["dim"] / full["dim"])
        for key, size in sizes.items():
            named.set_default(tree, f"model.mixers.{name}.{key}", size)


def narrow_mixer(mixer: Mapping[str, Any], *, heads: float, width: float) -> dict[str, int]:
    """Scale a linear mixer's heads as attention's, and their number with the model's width."""
    sizes = {
        key: max(2, round(mixer[key] * heads))
        for key in ("key_dim", "value_dim", "gate_rank")
        if mixer.get(key) is not None
    }
    shared = mixer["num_heads"] // (mixer.get("num_key_heads") or mixer["num_heads"])
    channels = mixer["num_heads"] * mixer["value_dim"] * width
    groups = max(1, round(channels / sizes["value_dim"] / shared))
    sizes["num_heads"] = groups * shared
    if mixer.get("num_key_heads") is not None:
        sizes["num_key_heads"] = groups
    return sizes


def _shrink_groups(model: Any, full: Any, named: UserOverrides, tree: MutableTree) -> None:
    """Shrink expert groups, to at least two experts each; keep one leading dense layer.

    A stage of a miniature has two layers, so it still has one layer with experts.
    """
    if (groups := full.get("num_groups", 1)) > 1:
        experts, top_k = model["mlp"]["num_experts"], model["mlp"]["top_k"]
        fitting = [n for n in range(1, groups + 1) if experts % n == 0 and experts >= 2 * n]
        named.set_default(tree, "model.mlp.num_groups", max(fitting))
        num_groups = model["mlp"]["num_groups"]
        least = -(-top_k * num_groups // experts)
        part = round(full["top_groups"] * num_groups / groups)
        named.set_default(tree, "model.mlp.top_groups", max(least, part, 1))
    if model.get("dense_mlp") is not None:
        named.set_default(tree, "model.num_dense_layers", 1)


def _shrink_vocabulary(
    tree: MutableTree, rule: Shrink, named: UserOverrides, full: MutableTree
) -> None:
    """Shrink the vocabulary of tokenizer and embedding; keep padding rows if there are any.

    A small vocabulary stays. The vocabulary of an existing tokenizer stays too, except for a
    parent's tokenizer, because the parent is also a miniature.
    """
    model, data = tree["model"], tree["data"]
    written = any(source.get("tokens") for source in data["sources"].values())
    there = written or (data["tokenizer_folder"] != "none" and not tree.get("from"))
    if there and not named.is_overridden("tokenizer.vocab_size"):
        return
    if full["model"]["padded_vocab_size"] <= rule.padded_vocab_size:
        return
    spare = model["padded_vocab_size"] > model["vocab_size"]
    rows = rule.padded_vocab_size
    most = rows - rule.padding_rows if spare else rows
    pieces = min(most, full["tokenizer"]["vocab_size"])
    named.set_default(tree, "tokenizer.vocab_size", pieces)
    named.set_default(tree, "model.vocab_size", tree["tokenizer"]["vocab_size"])
    if model["vocab_size"] != pieces:
        rows = model["vocab_size"] + (rule.padding_rows if spare else 0)
    named.set_default(tree, "model.padded_vocab_size", rows)
    sample, less = data["tokenizer_sample_bytes"], rule.tokenizer_sample_bytes
    if sample == "all" or (less != "all" and less < sample):
        named.set_default(tree, "data.tokenizer_sample_bytes", less)


def _shrink_budget(
    tree: MutableTree, rule: Shrink, named: UserOverrides, full: MutableTree
) -> None:
    budget, before = tree["budget"], full["budget"]
    reference = _reference_tokens(full, rule)
    named.set_default(tree, "budget.total_tokens", min(rule.total_tokens, reference))
    shortest = min(rule.sequence_length, before["sequence_length"])
    named.set_default(tree, "budget.sequence_length", shortest)
    length = budget["sequence_length"]
    goldfish: Any = tree["data"].get("goldfish", "none")  # a resolved recipe may lack it
    if goldfish != "none" and goldfish["window_tokens"] > length:  # else no target is excluded
        named.set_default(tree, "data.goldfish.window_tokens", length // 2)
    tokens = min(rule.samples_per_step * length, before["global_batch_tokens"])
    named.set_default(
        tree, "budget.global_batch_tokens", max(length, tokens // length * length)
    )
    positions: Any = tree["model"]["positions"]
    if "num_positions" in positions and length != before["sequence_length"]:
        named.set_default(tree, "model.positions.num_positions", length)
    _shrink_ramp(budget, before, named, reference)
    if budget["total_tokens"] != reference:
        _shrink_lengths(tree, rule, named, full)


def _shrink_windows(tree: MutableTree, named: UserOverrides, full: MutableTree) -> None:
    """Shrink attention windows with the sequence; keep the end of a too long pattern."""
    length, before = (config["budget"]["sequence_length"] for config in (tree, full))
    if windows := full["model"]["attention"].get("windows"):
        pattern = windows[-tree["model"]["num_layers"] :]
        short = [
            window if window == "full" else max(1, window * length // before)
            for window in pattern
        ]
        named.set_default(tree, "model.attention.windows", short)


def _reference_tokens(full: MutableTree, rule: Shrink) -> int:
    """Return the total tokens that lengths are a fraction of: the budget's or the schedule's.

    A published run of a large model that ends within its warm-up measures speed. A miniature of
    it would have no learning rate, so its lengths keep their fraction of the schedule instead.
    """
    total: int = full["budget"]["total_tokens"]
    large = full["model"]["dim"] > rule.dim
    if large and full["schedule"].get("warmup_tokens", 0) >= total:
        return int(full["schedule"].get("total_tokens", total))
    return total


def _shrink_ramp(budget: Any, before: Any, named: UserOverrides, reference: int) -> None:
    """Shrink the batch ramp-up to one increment, from at most half of the batch."""
    ramp, batch = before["ramp_up"], budget["global_batch_tokens"]
    unchanged = budget["total_tokens"] == reference and batch == before["global_batch_tokens"]
    if unchanged or ramp == "none" or named.is_overridden("budget.ramp_up"):
        return
    length = budget["sequence_length"]
    start = min(batch // 2, ramp["start_tokens"]) // length * length or batch // 2
    over = ramp["over_tokens"] * budget["total_tokens"] // reference
    budget["ramp_up"] = {
        "start_tokens": start,
        "increment_tokens": batch - start,
        "over_tokens": max(start, over),
    }


def scale_length(path: str, tokens: int, total: int, reference: int) -> int:
    """Return a length scaled from ``reference`` to ``total``; only a warm-up may become 0."""
    least = int(tokens > 0 and not path.endswith("warmup_tokens"))
    return max(least, tokens * total // reference)


def _shrink_lengths(
    tree: MutableTree, rule: Shrink, named: UserOverrides, full: MutableTree
) -> None:
    """Scale all lengths of schedule, optimizer and mixture with the token budget."""
    budget, reference = tree["budget"], _reference_tokens(full, rule)
    batch, total = budget["global_batch_tokens"], budget["total_tokens"]
    for section in ("schedule", "optimizer"):
        for path, value in list(iterate_leaves(tree[section], section)):
            if path.endswith("_tokens"):
                named.set_default(tree, path, scale_length(path, value, total, reference))
    for path, value in iterate_leaves(tree["data"]["phases"], "data.phases"):
        if path.endswith(".from_tokens"):
            named.set_default(
                tree, path, max(1, value * total // full["budget"]["total_tokens"])
            )
    named.set_default(tree, "checkpoint.every_tokens", max(batch, total // rule.checkpoints))
    named.set_default(tree, "evaluation.every_tokens", max(batch, total // rule.evaluations))
