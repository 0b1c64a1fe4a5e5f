"""The miniature: a recipe made small by rule, which keeps every feature of the big one.

Width, depth, vocabulary, sequence, batch and tokens shrink; head grouping, positions, norm,
activation, tying, routing, float8 and the schedule's shape stay. The sizes are those of
``conf/scale/``; what the user named is left alone, and nothing is made larger: what is small
already stays as it is, with all that would follow from it.
"""

from typing import Any

from components.config.rules.engine import FLOAT8, MULTIPLE
from components.config.rules.parametrization import base_multiple
from components.config.schema.sections import Shrink
from components.config.stand_ins import stand_in
from components.config.user_overrides import Tree, UserOverrides, leaves

FFN_MULTIPLE = 8  # keeps small matrices on whole vector registers


def scale_down(
    tree: Tree, rule: Shrink, named: UserOverrides, full: Tree, *, reads_files: bool
) -> None:
    """Make ``tree`` small in place, before its ranks are dealt.

    Lengths and rates keep their proportion to ``full``, the recipe without the user's keys.
    With ``reads_files`` the text is asked how long it is.
    """
    model: Any = tree["model"]
    named.put(tree, "model.num_layers", min(rule.num_layers, model["num_layers"]))
    every = min(tree["parallelism"]["recompute_every"], model["num_layers"])
    named.put(tree, "parallelism.recompute_every", every)
    if skip_every := model["positions"].get("skip_every"):  # one layer at least goes without
        named.put(tree, "model.positions.skip_every", min(skip_every, model["num_layers"]))
    if full["model"]["dim"] > rule.dim:
        _narrow(tree, rule, named, full["model"])
    if experts := full["model"]["mlp"].get("num_experts"):
        # A token goes to the same part of fewer experts, but to two if it went to several.
        top_k = full["model"]["mlp"]["top_k"]
        named.put(tree, "model.mlp.num_experts", min(rule.num_experts, experts))
        part = round(top_k * model["mlp"]["num_experts"] / experts)
        named.put(tree, "model.mlp.top_k", min(top_k, max(min(2, top_k), part)))
        _shrink_groups(model, full["model"]["mlp"], named, tree)
    _shrink_vocabulary(tree, rule, named, full)
    _shrink_budget(tree, rule, named, full)
    _shrink_windows(tree, named, full)
    if tree["precision"]["compute"] != FLOAT8:  # emulated where a device has none
        named.put(tree, "precision.compute", "auto")
        for key in ("accumulate", "reduce"):
            if tree["precision"][key] == "float16":  # legal for float16 products alone
                named.put(tree, f"precision.{key}", "float32")
    stand_in(tree, rule, named, reads_files=reads_files)


def largest_microbatch(tree: Tree, rule: Shrink, full: Tree) -> int:
    """Give the rule's sequences of a microbatch, or as many as have the recipe's tokens."""
    sequences: int = full["parallelism"]["microbatch_sequences"]
    before, length = (int(one["budget"]["sequence_length"]) for one in (full, tree))
    return max(1, min(rule.microbatch_sequences, sequences * before // length))


def _narrow(tree: Tree, rule: Shrink, named: UserOverrides, full: Any) -> None:
    """Shrink the width, and what follows from it: heads, feed-forward, learning rate."""
    model: Any = tree["model"]
    heads, groups = full["attention"]["num_heads"], full["attention"]["num_kv_heads"]
    ratio = full["mlp"]["ffn_dim"] / full["dim"]
    named.put(tree, "model.dim", rule.dim)
    # A few large heads stay few: they narrow with the model.
    widest = model["dim"] // heads // FFN_MULTIPLE * FFN_MULTIPLE
    head_dim = min(max(rule.head_dim, widest), full["attention"]["head_dim"])
    named.put(tree, "model.attention.head_dim", head_dim)
    small_heads = max(1, min(heads, model["dim"] // model["attention"]["head_dim"]))
    named.put(tree, "model.attention.num_heads", small_heads)
    kept = model["attention"]["num_heads"]
    most = kept if groups == heads else min(groups, max(1, kept // 2))
    grouped = max(count for count in range(1, most + 1) if kept % count == 0)
    named.put(tree, "model.attention.num_kv_heads", grouped)
    _narrow_attention(tree, named, full)
    multiple = MULTIPLE if tree["precision"]["compute"] == FLOAT8 else FFN_MULTIPLE
    ffn_dim = round(ratio * model["dim"] / multiple) * multiple
    named.put(tree, "model.mlp.ffn_dim", min(ffn_dim, full["mlp"]["ffn_dim"]))
    others = {"mlp.shared_ffn_dim": full["mlp"].get("shared_ffn_dim")}
    others["dense_mlp.ffn_dim"] = (full.get("dense_mlp") or {}).get("ffn_dim")
    for path, width in others.items():
        if width is not None:
            narrow = round(width / full["dim"] * model["dim"] / multiple) * multiple
            named.put(tree, f"model.{path}", min(max(narrow, multiple), width))
    if base := model.get("parametrization"):  # of which rates are, at any width
        multiple = base_multiple(model["dim"], kept, model["attention"]["num_kv_heads"])
        whole = max(1, round(base["base_dim"] / multiple)) * multiple
        named.put(tree, "model.parametrization.base_dim", whole)
        return
    lr = tree["optimizer"]["lr"] * (full["dim"] / model["dim"]) ** rule.lr_width_exponent
    named.put(tree, "optimizer.lr", float(f"{lr:.3g}"))


def _narrow_attention(tree: Tree, named: UserOverrides, full: Any) -> None:
    """Shrink parts of a head and what scales it with the head, and ranks with the width."""
    model: Any = tree["model"]
    ratios = {
        "scale_dim": (model["attention"]["head_dim"], full["attention"]["head_dim"]),
        "rotary_dim": (model["attention"]["head_dim"], full["attention"]["head_dim"]),
        "value_dim": (model["attention"]["head_dim"], full["attention"]["head_dim"]),
        "query_rank": (model["dim"], full["dim"]),
        "key_value_rank": (model["dim"], full["dim"]),
    }
    for key, (now, before) in ratios.items():
        if (size := full["attention"].get(key)) is not None:
            narrow = max(2, round(size * now / before / 2) * 2)  # pairs of channels rotate
            named.put(tree, f"model.attention.{key}", min(size, narrow))


def _shrink_groups(model: Any, full: Any, named: UserOverrides, tree: Tree) -> None:
    """Keep groups of two experts at least, and leading dense layers to one: stages have two."""
    if (groups := full.get("num_groups", 1)) > 1:
        experts, top_k = model["mlp"]["num_experts"], model["mlp"]["top_k"]
        fitting = [n for n in range(1, groups + 1) if experts % n == 0 and experts >= 2 * n]
        named.put(tree, "model.mlp.num_groups", max(fitting))
        kept = model["mlp"]["num_groups"]
        least = -(-top_k * kept // experts)
        part = round(full["top_groups"] * kept / groups)
        named.put(tree, "model.mlp.top_groups", max(least, part, 1))
    if model.get("dense_mlp") is not None:
        named.put(tree, "model.num_dense_layers", 1)


def _shrink_vocabulary(tree: Tree, rule: Shrink, named: UserOverrides, full: Tree) -> None:
    """The tokenizer and the embedding agree; a recipe with rows to spare keeps some.

    A vocabulary that is small stays, and so does that of a tokenizer that is there already,
    but for a parent's: that is of a miniature, too.
    """
    model, data = tree["model"], tree["data"]
    written = any(source.get("tokens") for source in data["sources"].values())
    there = written or (data["tokenizer_folder"] != "none" and not tree.get("from"))
    if there and not named.covers("tokenizer.vocab_size"):
        return
    if full["model"]["padded_vocab_size"] <= rule.padded_vocab_size:
        return
    spare = model["padded_vocab_size"] > model["vocab_size"]
    rows = rule.padded_vocab_size
    most = rows - rule.padding_rows if spare else rows
    pieces = min(most, full["tokenizer"]["vocab_size"])
    named.put(tree, "tokenizer.vocab_size", pieces)
    named.put(tree, "model.vocab_size", tree["tokenizer"]["vocab_size"])
    if model["vocab_size"] != pieces:
        rows = model["vocab_size"] + (rule.padding_rows if spare else 0)
    named.put(tree, "model.padded_vocab_size", rows)
    sample, less = data["tokenizer_sample_bytes"], rule.tokenizer_sample_bytes
    if sample == "all" or (less != "all" and less < sample):
        named.put(tree, "data.tokenizer_sample_bytes", less)


def _shrink_budget(tree: Tree, rule: Shrink, named: UserOverrides, full: Tree) -> None:
    budget, before = tree["budget"], full["budget"]
    reference = _reference_tokens(full, rule)
    named.put(tree, "budget.total_tokens", min(rule.total_tokens, reference))
    shortest = min(rule.sequence_length, before["sequence_length"])
    named.put(tree, "budget.sequence_length", shortest)
    length = budget["sequence_length"]
    goldfish: Any = tree["data"].get("goldfish", "none")  # a settled recipe may lack it
    if goldfish != "none" and goldfish["window_tokens"] > length:  # else no target is left out
        named.put(tree, "data.goldfish.window_tokens", length // 2)
    tokens = min(rule.samples_per_step * length, before["global_batch_tokens"])
    named.put(tree, "budget.global_batch_tokens", max(length, tokens // length * length))
    positions: Any = tree["model"]["positions"]
    if "num_positions" in positions and length != before["sequence_length"]:
        named.put(tree, "model.positions.num_positions", length)
    _shrink_ramp(budget, before, named, reference)
    if budget["total_tokens"] != reference:
        _shrink_lengths(tree, rule, named, full)


def _shrink_windows(tree: Tree, named: UserOverrides, full: Tree) -> None:
    """Let a window keep its part of the sequence; of a pattern too long its end stays."""
    length, before = (one["budget"]["sequence_length"] for one in (tree, full))
    if windows := full["model"]["attention"].get("windows"):
        kept = windows[-tree["model"]["num_layers"] :]
        short = [one if one == "full" else max(1, one * length // before) for one in kept]
        named.put(tree, "model.attention.windows", short)


def _reference_tokens(full: Tree, rule: Shrink) -> int:
    """Return the recipe's tokens, or the schedule's.

    A published run of a large model that ends inside its warm-up measures speed, and would
    leave a miniature without a learning rate: then lengths keep their share of the schedule.
    """
    total: int = full["budget"]["total_tokens"]
    large = full["model"]["dim"] > rule.dim
    if large and full["schedule"].get("warmup_tokens", 0) >= total:
        return int(full["schedule"].get("total_tokens", total))
    return total


def _shrink_ramp(budget: Any, before: Any, named: UserOverrides, reference: int) -> None:
    """Let a batch that ramps up start at half its size at most, and take one step."""
    ramp, batch = before["ramp_up"], budget["global_batch_tokens"]
    kept = budget["total_tokens"] == reference and batch == before["global_batch_tokens"]
    if kept or ramp == "none" or named.covers("budget.ramp_up"):
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
    """Return the same part of ``total`` tokens; of lengths only a warm-up may become 0."""
    least = int(tokens > 0 and not path.endswith("warmup_tokens"))
    return max(least, tokens * total // reference)


def _shrink_lengths(tree: Tree, rule: Shrink, named: UserOverrides, full: Tree) -> None:
    """Give every length of schedule, optimizer and mixture the same share of the budget."""
    budget, reference = tree["budget"], _reference_tokens(full, rule)
    batch, total = budget["global_batch_tokens"], budget["total_tokens"]
    for section in ("schedule", "optimizer"):
        for path, value in list(leaves(tree[section], section)):
            if path.endswith("_tokens"):
                named.put(tree, path, scale_length(path, value, total, reference))
    for path, value in leaves(tree["data"]["phases"], "data.phases"):
        if path.endswith(".from_tokens"):
            named.put(tree, path, max(1, value * total // full["budget"]["total_tokens"]))
    named.put(tree, "checkpoint.every_tokens", max(batch, total // rule.checkpoints))
    named.put(tree, "evaluation.every_tokens", max(batch, total // rule.evaluations))
