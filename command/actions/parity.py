"""Parity: check on this machine that a layout computes the same as one process."""

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from command.arguments import Arguments
from command.composition.compose import compose_run
from command.outcome import ActionResult, Status, print_result
from components.config.recipe import Recipe
from components.config.user_overrides import UserOverrides
from components.errors import RecipeError
from components.parity import prover
from components.parity.prover import JUDGED, ROUNDED, ParityProof
from components.report.tables import Grid, terminal_table
from components.terminal import create_console
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
    "These runs compute in {} with dropout 0 and random tokens, whatever the recipe sets; "
    "no corpus is read."
)
DEEPSPEED_FACTS = (
    "DeepSpeed has no float64: its layouts are compared with the mesh engine in float32 and "
    "differ by rounding."
)


def run(arguments: Arguments) -> ActionResult:
    """Compare each layout with one process, or the model with wider models, and print."""
    if arguments.kind == "coordinates":
        from command import coordinates  # imports torch

        return coordinates.check_coordinates(arguments)
    recipes = list(layouts_of(arguments))
    for recipe in recipes:
        check_trainable(recipe)
        check_builds(recipe)
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        ours = prover.Prover(Path(folder))
        proofs = [ours.prove_layout(recipe) for recipe in recipes]
    print_result(arguments.output, as_json(proofs), lambda: print_proofs(proofs))
    holds = all(proof.is_proven for proof in proofs)
    return ActionResult(Status.DONE if holds else Status.DOES_NOT_HOLD)


def layouts_of(arguments: Arguments) -> Iterator[Recipe]:
    """Compose the dealt layout if ranks or no ``layouts`` are named, then the listed layouts.

    A single rank, which would be compared with itself, is a RecipeError.
    """
    named = UserOverrides(arguments.values)
    for key, value in FIXED.items():
        if named.is_overridden(key) and arguments.values.get(key) != value:
            raise RecipeError(key, f"action=parity sets {value}", f"remove {key}")
    choices = {"scale": "parity"} | arguments.choices
    # Phases are removed, so the first phase is checked. To check another, the user sets its
    # keys.
    values = {"phases": {}} | arguments.values | FIXED
    if named.is_overridden("cluster.ranks") or not arguments.layouts:
        dealt = _composed(replace(arguments, choices=choices, values=values))
        if dealt.cluster.ranks == 1 and not named.is_overridden("parallelism"):
            problem = "one rank would be compared with itself"
            remedy = "write cluster.ranks=2 or more, or layouts=[{data: 2, tensor: 2}]"
            raise RecipeError("cluster.ranks", problem, remedy)
        yield dealt
    values.pop("cluster.ranks", None)
    for layout in arguments.layouts:
        degrees = {f"parallelism.{key}": value for key, value in layout.items()}
        yield _composed(replace(arguments, choices=choices, values=values | degrees))


def _composed(arguments: Arguments) -> Recipe:
    """Compose in the dtype that every engine supports, then switch to the judged dtype."""
    dtypes = {key: ROUNDED for key, value in FIXED.items() if value == JUDGED}
    rounded = replace(arguments, values={**arguments.values, **dtypes})
    # A proof draws weights and has no state.
    recipe = compose_run(rounded, weights_only=True).recipe
    return prover.in_precision(recipe, prover.judged_in(recipe))


def as_json(proofs: Sequence[ParityProof]) -> dict[str, object]:
    """Return one proof's object, or several under ``layouts`` with an overall ``holds``."""
    objects = [_object(proof) for proof in proofs]
    if len(objects) == 1:
        return objects[0]
    return {
        "holds": all(proof.is_proven for proof in proofs),
        "tolerance": max(proof.dtype_tolerances.tensor for proof in proofs),
        "layouts": objects,
    }


def _object(proof: ParityProof) -> dict[str, object]:
    tree: dict[str, object] = {
        "holds": proof.is_proven,
        "tolerance": proof.dtype_tolerances.tensor,
        "label": _label(proof.recipe),
        "layout": proof.recipe.parallelism.model_dump(mode="json"),
        "ranks": proof.recipe.cluster.ranks,
        "seconds": round(proof.seconds, 1),
        "precision": proof.compute_dtype,
        "dropout": 0.0,
        "failure": proof.failure,
    }
    if (comparison := proof.comparison) is None:
        return tree | {"loss": _difference(None), "gradient": _difference(None, parameter=None)}
    loss, norm, gradient, weight = comparison.largest_differences.values()
    limit = proof.dtype_tolerances.loss
    return tree | {
        "loss": _difference(loss.difference, microbatch=loss.where, tolerance=limit),
        "gradient_norm": _difference(norm.difference, step=norm.where),
        "gradient": _difference(gradient.difference, parameter=gradient.where),
        "weight": _difference(weight.difference, parameter=weight.where),
        "float32": {"loss": _difference(proof.float32_loss_difference)},
        "problems": comparison.failure_texts,
    }


def _difference(value: float | None, **more: object) -> dict[str, object]:
    """Return a difference for JSON. A value that is not finite becomes null."""
    finite = value is not None and math.isfinite(value)
    return {"largest_relative_difference": value if finite else None, **more}


def print_proofs(proofs: Sequence[ParityProof]) -> None:
    """Print one row per layout, then the problems, then the limits of these runs."""
    out = create_console(width=170)
    title = "largest relative differences from one process"
    rows = list(map(_cells, proofs))
    out.print(terminal_table(Grid(columns=COLUMNS, rows=rows, title=title)))
    for proof in proofs:
        problems = (
            [proof.failure] if proof.comparison is None else proof.comparison.failure_texts
        )
        for problem in problems[:MOST_PROBLEMS]:
            out.print(f"{_label(proof.recipe)}: {problem}")
        if len(problems) > MOST_PROBLEMS:
            out.print(f"... and {len(problems) - MOST_PROBLEMS} more")
    precisions = sorted({proof.compute_dtype for proof in proofs}, reverse=True)
    out.print(FACTS.format(" or ".join(precisions)))
    if ROUNDED in precisions:
        out.print(DEEPSPEED_FACTS)


def _cells(proof: ParityProof) -> tuple[str, ...]:
    cells = ["the ranks failed", "", "", "", ""]
    if (comparison := proof.comparison) is not None:
        cells = [f"{comparison.loss.difference:.1e}"]
        for part in (comparison.gradient, comparison.weight):
            cells += [f"{part.difference:.1e}", part.where]
    difference = proof.float32_loss_difference
    rounded = "" if difference is None else f"{difference:.1e}"
    verdict = "holds" if proof.is_proven else "DOES NOT HOLD"
    ranks = str(proof.recipe.cluster.ranks)
    return (_label(proof.recipe), ranks, *cells, rounded, f"{proof.seconds:.0f}", verdict)


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
