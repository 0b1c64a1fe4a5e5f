"""Storage that a run asks for: its tokens as files, and its checkpoints."""

from collections.abc import Iterator
from math import ceil

from components.config.schema.recipe import Recipe
from components.data.token_file import width_of
from components.planner.result import PlanResult

NOT_KNOWN = "not known"
WEIGHT_BYTES = 2  # an exported weight, in bfloat16
TERA, GIGA = 1e12, 1e9


def storage_rows(recipe: Recipe, plan: PlanResult) -> Iterator[tuple[str, str, str]]:
    """Yield item, value and source; the sum is that of what is known."""
    policy, total = recipe.checkpoint, recipe.budget.total_tokens
    item = 2 if width_of(recipe.model["vocab_size"]) == "uint16" else 4
    data = total * item
    said = f"{item} bytes a token, each read once: less if sources are repeated"
    yield "tokens as files, at most", _bytes(data), said
    weights = recipe.derived.parameters.total * WEIGHT_BYTES
    if plan.bill is None:
        yield "a checkpoint", NOT_KNOWN, "no plan: see Risks"
        return
    each = plan.bill.checkpoints.bytes
    yield "a checkpoint, with the optimizer", _bytes(each), "plan"
    # The new one is written before an old one goes.
    count, rule = (
        policy.keep + 1 + policy.keep_best,
        f"the last {policy.keep}, one being written",
    )
    if policy.keep_every_tokens != "none":
        count += ceil(total / policy.keep_every_tokens)
        rule += f", one every {policy.keep_every_tokens:,} tokens"
    yield "checkpoints at a time", f"{count:,}: {_bytes(count * each)}", f"recipe: {rule}"
    yield "weights at the end", _bytes(weights), f"{WEIGHT_BYTES} bytes a parameter"
    several = 0
    if policy.weights_every_tokens != "none":
        several = ceil(total / policy.weights_every_tokens) * weights
        said = f"recipe: every {policy.weights_every_tokens:,} tokens"
        yield "weights that stay", _bytes(several), said
    yield "sum", _bytes(data + count * each + weights + several), "the rows above"


def _bytes(count: float) -> str:
    return f"{count / TERA:,.2f} TB" if count >= TERA else f"{count / GIGA:,.1f} GB"
