"""The miniature: a recipe made small by rule, which keeps every feature of the big one.

Width, depth, vocabulary, sequence, batch and tokens shrink; head grouping, positions, norm,
activation, tying, routing, float8 and the schedule's shape stay. The sizes are those of
``conf/scale/``; what the user named is left alone.
"""

from collections.abc import Mapping
from typing import Any

from components.config.rules.engine import FLOAT8, MULTIPLE
from components.config.schema.sections import Shrink
from components.config.user_overrides import Tree, UserOverrides, leaves

FFN_MULTIPLE = 8  # keeps small matrices on whole vector registers


def scale_down(tree: Tree, rule: Shrink, named: UserOverrides, full: Tree) -> None:
    """Make ``tree`` small in place, before its ranks are dealt.

    Lengths and rates keep their proportion to ``full``, the recipe without the user's keys.
    """
    _shrink_model(tree, rule, named, full["model"])
    _shrink_vocabulary(tree, rule, named)
    named.put(tree, "budget.total_tokens", rule.total_tokens)
    named.put(tree, "budget.sequence_length", rule.sequence_length)
    length = tree["budget"]["sequence_length"]
    named.put(tree, "budget.global_batch_tokens", rule.samples_per_step * length)
    if "num_positions" in tree["model"]["positions"]:
        named.put(tree, "model.positions.num_positions", length)
    _shrink_lengths(tree, full, named)
    batch, total = tree["budget"]["global_batch_tokens"], tree["budget"]["total_tokens"]
    named.put(tree, "checkpoint.every_tokens", max(batch, total // rule.checkpoints))
    named.put(tree, "evaluation.every_tokens", max(batch, total // rule.evaluations))
    widths = full["model"]["dim"] / tree["model"]["dim"]
    lr = tree["optimizer"]["lr"] * widths**rule.lr_width_exponent
    named.put(tree, "optimizer.lr", float(f"{lr:.3g}"))
    if tree["precision"]["compute"] != FLOAT8:  # emulated where a device has none
        named.put(tree, "precision.compute", "auto")
    named.put(tree, "data.held_out_fraction", rule.held_out_fraction)
    named.put(tree, "data.tokenizer_sample_bytes", rule.tokenizer_sample_bytes)
    # A phase of the mixture begins at the same part of the budget.
    for path, value in leaves(tree["data"]["phases"], "data.phases"):
        if path.endswith(".from_tokens"):
            named.put(tree, path, max(1, value * total // full["budget"]["total_tokens"]))
    _stand_in(tree["data"], rule, named)


def _shrink_model(tree: Tree, rule: Shrink, named: UserOverrides, full: Any) -> None:
    model: Any = tree["model"]
    heads, groups = full["attention"]["num_heads"], full["attention"]["num_kv_heads"]
    ratio = full["mlp"]["ffn_dim"] / full["dim"]
    named.put(tree, "model.dim", rule.dim)
    named.put(tree, "model.num_layers", min(rule.num_layers, model["num_layers"]))
    named.put(tree, "model.attention.head_dim", rule.head_dim)
    small_heads = max(1, model["dim"] // model["attention"]["head_dim"])
    named.put(tree, "model.attention.num_heads", small_heads)
    kept = model["attention"]["num_heads"]
    most = kept if groups == heads else min(groups, max(1, kept // 2))
    grouped = max(count for count in range(1, most + 1) if kept % count == 0)
    named.put(tree, "model.attention.num_kv_heads", grouped)
    multiple = MULTIPLE if tree["precision"]["compute"] == FLOAT8 else FFN_MULTIPLE
    named.put(tree, "model.mlp.ffn_dim", round(ratio * model["dim"] / multiple) * multiple)
    if experts := full["mlp"].get("num_experts"):
        # A token goes to the same part of fewer experts, but to two if it went to several.
        named.put(tree, "model.mlp.num_experts", min(rule.num_experts, experts))
        part = round(full["mlp"]["top_k"] * model["mlp"]["num_experts"] / experts)
        named.put(tree, "model.mlp.top_k", max(min(2, full["mlp"]["top_k"]), part))


def _shrink_vocabulary(tree: Tree, rule: Shrink, named: UserOverrides) -> None:
    """The tokenizer and the embedding agree; a recipe with rows to spare keeps some."""
    model: Any = tree["model"]
    spare = model["padded_vocab_size"] > model["vocab_size"]
    rows = rule.padded_vocab_size
    pieces = rows - rule.padding_rows if spare else rows
    named.put(tree, "tokenizer.vocab_size", pieces)
    named.put(tree, "model.vocab_size", tree["tokenizer"]["vocab_size"])
    if model["vocab_size"] != pieces:
        rows = model["vocab_size"] + (rule.padding_rows if spare else 0)
    named.put(tree, "model.padded_vocab_size", rows)


def _shrink_lengths(tree: Tree, full: Any, named: UserOverrides) -> None:
    """Every length of ramp, schedule and optimizer keeps its share of the budget.

    A batch that ramps up starts at half its size and takes one step. A published run that ends
    inside its warm-up would leave a miniature without a learning rate: then lengths keep their
    share of the schedule instead.
    """
    total, reference = tree["budget"]["total_tokens"], full["budget"]["total_tokens"]
    budget = tree["budget"]
    if budget["ramp_up"] != "none" and not named.covers("budget.ramp_up"):
        half = budget["global_batch_tokens"] // 2
        over = max(half, budget["ramp_up"]["over_tokens"] * total // reference)
        budget["ramp_up"] = {
            "start_tokens": half,
            "increment_tokens": half,
            "over_tokens": over,
        }
    if full["schedule"].get("warmup_tokens", 0) >= reference:
        reference = full["schedule"]["total_tokens"]
    for section in ("schedule", "optimizer"):
        for path, value in list(leaves(tree[section], section)):
            if path.endswith("_tokens"):
                named.put(tree, path, value * total // reference)


def _stand_in(data: Any, rule: Shrink, named: UserOverrides) -> None:
    """Give each source its embedded text; those without one leave, carriers fill up."""
    sources = data["sources"]
    for name, source in sources.items():
        if not _has_text(source) and source.get("stand_in"):
            source["embedded"] = source["stand_in"]
        if not named.covers(f"data.sources.{name}.most_epochs"):
            source.pop("most_epochs", None)  # a limit of the real text, not of its stand-in
    usable = [name for name, source in sources.items() if _has_text(source)]
    if data["mixture"] != "given":
        data["sources"] = {name: sources[name] for name in usable}
        return
    if named.covers("data.shares"):
        return
    phases = data["phases"]
    sections = [data, *phases.values()]
    shared = dict.fromkeys(name for section in sections for name in section["shares"])
    kept = [name for name in shared if name in usable]
    unshared = [name for name in sources if name not in shared]  # the user's; refused later
    data["sources"] = {name: sources[name] for name in [*kept, *unshared]}
    carriers = _carriers(data["sources"], kept, rule)
    ours = [one for name, one in phases.items() if not named.covers(f"data.phases.{name}")]
    for section in (data, *ours):
        section["shares"] = _with_carriers(section["shares"], kept, carriers)


def _carriers(sources: Any, usable: list[str], rule: Shrink) -> dict[str, float]:
    """Give each carrier's share by the source that reads its text, a new one if none does."""
    shares = {}
    for name, carrier in rule.carriers.items():
        reading = [one for one in usable if sources[one].get("embedded") == carrier.embedded]
        if not reading:
            sources[name] = {"files": [], "embedded": carrier.embedded, "stand_in": None}
        shares[reading[0] if reading else name] = carrier.share
    return shares


def _with_carriers(
    shares: Mapping[str, float], usable: list[str], carriers: Mapping[str, float]
) -> dict[str, float]:
    """Let usable sources share what carriers leave; carriers share all if there are none."""
    kept = {name: share for name, share in shares.items() if name in usable}
    carried, total = sum(carriers.values()), sum(kept.values())
    scale = (1 - carried) / total if total else 0
    given = {name: share * scale for name, share in kept.items()}
    for name, share in carriers.items():
        given[name] = given.get(name, 0) + (share if total else share / carried)
    return given


def _has_text(source: Any) -> bool:
    return any(source.get(kind) for kind in ("files", "embedded", "tokens", "dataset"))
