"""The model card: what was trained, from what, how far, and what nobody published."""

from collections.abc import Mapping
from typing import Any

from components.run.records import Results
from components.spec.recipe import Recipe

_MINIATURE = """\
**This is a miniature**: the recipe made small by rule, trained for minutes to show that it
works. It is no release of the published model and good for nothing but tests.
"""
_USE = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = AutoModelForCausalLM.from_pretrained("FOLDER", dtype="auto")
prompt = tokenizer("Once", return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, max_new_tokens=20, do_sample=False)[0]))
```
"""


def write_card(recipe: Recipe, *, step: int, tokens: int, results: Results | None) -> str:
    """Compose the card; ``results`` are absent while a run trains and if it was killed."""
    is_miniature = not isinstance(recipe.scale.shrink, str)
    parts = [
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\n---",
        f"# {recipe.name}" + (", miniature" if is_miniature else ""),
        recipe.why,
        *([_MINIATURE] if is_miniature else []),
        _table(("", ""), _figures(recipe, step, tokens, results)),
        *_assumed(recipe),
        "## Use",
        _USE,
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _figures(
    recipe: Recipe, step: int, tokens: int, results: Results | None
) -> list[tuple[str, str]]:
    budget = recipe.budget
    rows = [
        ("recipe", f"`{recipe.name}`, scale `{recipe.scale.name}`"),
        ("fingerprint", f"`{recipe.fingerprint()}`"),
        ("parameters", f"{recipe.derived.parameters.total:,}"),
        ("trained", f"{tokens:,} of {budget.total_tokens:,} tokens, {step:,} steps"),
        ("sequence length", f"{budget.sequence_length:,} tokens"),
        (
            "data",
            ", ".join(f"{name} {share:.3f}" for name, share in recipe.data.shares.items())
            or f"{', '.join(recipe.data.names)}: shares by the rule {recipe.data.mixture}",
        ),
    ]
    # What the run ended with says nothing about an earlier checkpoint.
    if results is None or results.tokens != tokens:
        return rows
    held_out = results.held_out
    losses = {"last training loss": results.loss, "held-out loss": held_out.final}
    losses["smoothed unigram model"] = held_out.unigram
    said = {name: loss for name, loss in losses.items() if loss is not None}
    rows += [(name, f"{loss:.4f} nats a token") for name, loss in said.items()]
    return rows


def _assumed(recipe: Recipe) -> list[str]:
    if not recipe.assumed:
        return []
    rows = [
        (f"`{name}`", _brief(entry.value), entry.reason)
        for name, entry in recipe.assumed.items()
    ]
    said = "No source gives these values; the recipe sets them, for the reason beside each."
    return ["## Assumed, never published", said, _table(("value of", "set to", "reason"), rows)]


def _brief(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{len(value)} values"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
