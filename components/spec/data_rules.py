"""Rules of the section ``data``: shares that add up, phases inside the budget, sources."""

from collections.abc import Mapping

from components.errors import RecipeError
from components.spec.data import Data, Source
from components.spec.targets import nearest

SHARES_TOLERANCE = 1e-6  # shares are written with six decimals


def check_data(data: Data, *, total_tokens: int) -> None:
    """Hold every rule of the section.

    Raises:
        RecipeError: the first rule that is broken.
    """
    _check_mixture(data)
    for name in data.phases:
        _check_phase(data, name, total_tokens)
    for name, source in data.sources.items():
        if name not in data.names:
            raise RecipeError(
                f"data.sources.{name}",
                "no share is given for this source",
                f"set data.shares.{name}=...; sources {nearest(name, list(data.names))}",
            )
        _check_source(f"data.sources.{name}", source, document_mask=data.document_mask)
    _check_tokenizer(data)


def _check_mixture(data: Data) -> None:
    if data.mixture == "given":
        _check_sum("data.shares", data.shares)
    elif data.shares:
        raise RecipeError(
            "data.shares",
            f"{len(data.shares)} shares are given, but data.mixture computes them",
            "set data.shares={} too, or data.mixture=given",
        )


def _check_sum(path: str, shares: Mapping[str, float]) -> None:
    total = sum(shares.values())
    if abs(total - 1) > SHARES_TOLERANCE:
        raise RecipeError(
            path,
            f"{len(shares)} shares add up to {total:.6f}, not to 1",
            f"divide each by {total:.6f}, or change one by {1 - total:+.6f}",
        )


def _check_phase(data: Data, name: str, total_tokens: int) -> None:
    phase, path = data.phases[name], f"data.phases.{name}"
    if (phase.from_tokens is None) == (phase.from_fraction is None):
        raise RecipeError(
            path,
            "says not once where it begins",
            "give it either from_tokens or from_fraction",
        )
    if phase.from_tokens is not None and phase.from_tokens >= total_tokens:
        raise RecipeError(
            f"{path}.from_tokens",
            f"{phase.from_tokens:,} is not inside the budget of {total_tokens:,} tokens",
            "let it begin earlier, or leave it out",
        )
    _check_sum(f"{path}.shares", phase.shares)


def _check_tokenizer(data: Data) -> None:
    """Token files and text of one run have one tokenizer, which is not trained on the text."""
    tokens = [name for name, source in data.sources.items() if source.tokens]
    texts = [name for name, s in data.sources.items() if s.has_text and not s.tokens]
    if tokens and texts and data.tokenizer_folder == "none":
        raise RecipeError(
            "data.tokenizer_folder",
            f"none, but {tokens[0]} has tokens already, and the text of {texts[0]} needs the "
            "tokenizer that wrote them",
            "name the folder that holds its tokenizer.json or tokenizer.model",
        )


def _check_source(path: str, source: Source, *, document_mask: bool) -> None:
    kinds = {
        "files": source.files,
        "embedded": source.embedded,
        "tokens": source.tokens,
        "dataset": source.dataset,
    }
    given = [kind for kind, value in kinds.items() if value]
    if len(given) > 1:
        raise RecipeError(path, f"{' and '.join(given)} exclude each other", "give one of them")
    if source.eod == "absent" and not source.tokens:
        raise RecipeError(
            f"{path}.eod", "is of token files, and there are none", "leave it out"
        )
    if source.eod == "absent" and document_mask:
        raise RecipeError(
            f"{path}.eod",
            "absent, but data.document_mask needs to see where documents end",
            "set data.document_mask=false, or tokenize again with --append-eod",
        )
