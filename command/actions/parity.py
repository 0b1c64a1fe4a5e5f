"""Prove on this machine that the recipe's layout computes what one process computes."""

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from command.arguments import Arguments
from command.composition.compose import compose
from command.outcome import ActionResult, Status, print_result
from components.config.recipe import Recipe
from components.config.user_overrides import UserOverrides
from components.errors import RecipeError
from components.parity import prover
from components.parity.prover import JUDGED, ROUNDED, ParityProof
from components.terminal import console
from components.train.launch import check_trainable
from components.train.local_checks import check_builds

FIXED: dict[str, Any] = {
    "model.dropout": 0.0,
    "model.attention.dropout": 0.0,
    **{f"precision.{key}": JUDGED for key in ("compute", "accumulate", "reduce")},
    "precision.loss_scale": "none",
    "cluster.device": "cpu",
}
MOST_PROBLEMS = 5
COLUMNS = (
    *("layout", "ranks", "loss", "gradient", "of", "weight", "of"),
    *("float32 loss", "seconds", ""),
)
FACTS = (
    "In these runs dropout is 0 and every number is in {}, whatever the recipe says; "
    "the tokens are drawn, no corpus is read."
)
DEEPSPEED_FACTS = (
    "DeepSpeed has no float64: its layouts are judged in float32, against the mesh engine, and "
    "differ by rounding."
)


def run(arguments: Arguments) -> ActionResult:
    """Compare each layout with one process, or the model with wider ones; print the result."""
    if arguments.kind == "coordinates":
        from command import coordinates  # imports torch

        return coordinates.run(arguments)
    recipes = list(layouts_of(arguments))
    for recipe in recipes:
        check_trainable(recipe)
        check_builds(recipe)
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        ours = prover.Prover(Path(folder))
        proofs = [ours.prove(recipe) for recipe in recipes]
    print_result(arguments.output, as_json(proofs), lambda: show(proofs))
    held = all(proof.holds for proof in proofs)
    return ActionResult(Status.DONE if held else Status.DOES_NOT_HOLD)


def layouts_of(arguments: Arguments) -> Iterator[Recipe]:
    """Compose the dealt layout if ranks are named or nothing else is, then the listed ones.

    Raises:
        RecipeError: a key is named that a proof sets otherwise, a layout breaks a rule, or
            nothing is named that differs from one process.
    """
    named = UserOverrides(arguments.values)
    for key, value in FIXED.items():
        if named.covers(key) and arguments.values.get(key) != value:
            raise RecipeError(key, f"a proof sets it to {value}", "leave it out")
    choices = {"scale": "parity"} | arguments.choices
    # Of a run with phases its first, unless another's keys are named in its place.
    values = {"phases": {}} | arguments.values | FIXED
    if named.covers("cluster.ranks") or not arguments.layouts:
        dealt = _composed(replace(arguments, choices=choices, values=values))
        if dealt.cluster.ranks == 1 and not named.covers("parallelism"):
            problem = "one rank would be compared with itself"
            remedy = "write cluster.ranks=2 or more, or layouts=[{data: 2, tensor: 2}]"
            raise RecipeError("cluster.ranks", problem, remedy)
        yield dealt
    values.pop("cluster.ranks", None)
    for layout in arguments.layouts:
        degrees = {f"parallelism.{key}": value for key, value in layout.items()}
        yield _composed(replace(arguments, choices=choices, values=values | degrees))


def _composed(arguments: Arguments) -> Recipe:
    """Compose in the dtype that every engine has, then take the one that is judged."""
    dtypes = {key: ROUNDED for key, value in FIXED.items() if value == JUDGED}
    asked = replace(arguments, values={**arguments.values, **dtypes})
    recipe = compose(asked, weights_only=True).recipe  # a proof draws weights, and has no state
    return prover.in_precision(recipe, prover.judged_in(recipe))


def as_json(proofs: Sequence[ParityProof]) -> dict[str, object]:
    """Return one proof's object, or several under ``layouts`` with an overall ``holds``."""
    objects = [_object(proof) for proof in proofs]
    if len(objects) == 1:
        return objects[0]
    return {
        "holds": all(proof.holds for proof in proofs),
        "tolerance": max(proof.tolerances.tensor for proof in proofs),
        "layouts": objects,
    }


def _object(proof: ParityProof) -> dict[str, object]:
    tree: dict[str, object] = {
        "holds": proof.holds,
        "tolerance": proof.tolerances.tensor,
        "label": _label(proof.recipe),
        "layout": proof.recipe.parallelism.model_dump(mode="json"),
        "ranks": proof.recipe.cluster.ranks,
        "seconds": round(proof.seconds, 1),
        "precision": proof.precision,
        "dropout": 0.0,
        "failure": proof.failure,
    }
    if (found := proof.comparison) is None:
        return tree | {"loss": _difference(None), "gradient": _difference(None, parameter=None)}
    loss, norm, gradient, weight = found.parts.values()
    limit = proof.tolerances.loss
    return tree | {
        "loss": _difference(loss.difference, microbatch=loss.where, tolerance=limit),
        "gradient_norm": _difference(norm.difference, step=norm.where),
        "gradient": _difference(gradient.difference, parameter=gradient.where),
        "weight": _difference(weight.difference, parameter=weight.where),
        "float32": {"loss": _difference(proof.float32_loss_difference)},
        "problems": found.problems,
    }


def _difference(value: float | None, **more: object) -> dict[str, object]:
    """JSON has no word for what is no number."""
    finite = value is not None and math.isfinite(value)
    return {"largest_relative_difference": value if finite else None, **more}


def show(proofs: Sequence[ParityProof]) -> None:
    """Print a row a layout, then what does not hold, then what these runs leave out."""
    out = console(width=170)
    table = Table(title="largest relative differences from one process", box=None)
    table.title_justify = "left"
    for place, column in enumerate(COLUMNS):
        right = place > 0 and column.endswith(("ranks", "loss", "seconds"))
        justify: Literal["left", "right"] = "right" if right else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=place == 0)
    for proof in proofs:
        table.add_row(*_cells(proof))
    out.print(table)
    for proof in proofs:
        problems = [proof.failure] if proof.comparison is None else proof.comparison.problems
        for problem in problems[:MOST_PROBLEMS]:
            out.print(f"{_label(proof.recipe)}: {problem}")
        if len(problems) > MOST_PROBLEMS:
            out.print(f"... and {len(problems) - MOST_PROBLEMS} more")
    precisions = sorted({proof.precision for proof in proofs}, reverse=True)
    out.print(FACTS.format(" or ".join(precisions)))
    if ROUNDED in precisions:
        out.print(DEEPSPEED_FACTS)


def _cells(proof: ParityProof) -> list[str]:
    cells = ["the ranks failed", "", "", "", ""]
    if (found := proof.comparison) is not None:
        cells = [f"{found.loss.difference:.1e}"]
        for part in (found.gradient, found.weight):
            cells += [f"{part.difference:.1e}", part.where]
    difference = proof.float32_loss_difference
    rounded = "" if difference is None else f"{difference:.1e}"
    said = "holds" if proof.holds else "DOES NOT HOLD"
    ranks = str(proof.recipe.cluster.ranks)
    return [_label(proof.recipe), ranks, *cells, rounded, f"{proof.seconds:.0f}", said]


def _label(recipe: Recipe) -> str:
    section = recipe.parallelism
    words = [f"{axis} {degree}" for axis, degree in section.used_axes.items()]
    over = section.data_shard < section.data * section.expert
    parts = f" in {section.expert_overlap} parts" if section.expert_overlap > 1 else ""
    plain = "" if section.expert_aware else ", plain"
    more = {
        "DeepSpeed": section.engine == "deepspeed",
        f"ZeRO {section.zero}" + f" over {section.data_shard}" * over: section.zero,
        "sequence parallel": section.sequence_parallel and section.tensor > 1,
        f"{section.expert_dispatch}{parts}{plain}": section.expert > 1,
        section.schedule: section.pipeline > 1,
        "recomputed": section.recompute not in {"none", "selective"},
        "recomputed by operator": section.recompute == "selective",
        f"every {section.recompute_every} layers": section.recompute_every > 1,
        "compiled": section.compile != "none",
        "offloaded": section.offload_optimizer,
    }
    named = (word for word, is_so in more.items() if is_so)
    return ", ".join([" x ".join(words) or "one rank", *named])
