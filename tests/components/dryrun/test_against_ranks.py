"""A dry run against real ranks: the allocator's peak, every collective, every FLOP."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from components.config.check import read_recipe
from components.config.recipe import Recipe
from components.run.folder import create_run_folder
from components.run.provenance import ROOT

# All ranks of all layouts run in one fixture: two to three minutes on an idle machine.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]

HERE = Path(__file__).parent
REHEARSE = """
import sys
from components.dryrun.rehearsal import main
for folder in sys.argv[1:]:
    for rank in "01":
        main([folder, rank])
"""
# Kernels on a CPU and gloo allocate memory without an operator.
TOLERANCE, OF_DATA_RANKS = 0.05, 0.02
SIZES = (
    *("scale=parity", "model.num_layers=2", "model.dim=128", "model.mlp.ffn_dim=320"),
    *("budget.sequence_length=128", "budget.global_batch_tokens=3072", "cluster.ranks=2"),
    *("budget.total_tokens=30720", "parallelism.microbatch_sequences=6", "cluster.device=cpu"),
    *("model.dropout=0.0", "model.attention.dropout=0.0"),
)
BFLOAT16 = "precision.compute=bfloat16"
SUMS = ("precision.accumulate=bfloat16", "precision.reduce=bfloat16")
SCHEMES = {
    "float32": ("precision.compute=float32",),
    "masters": (BFLOAT16,),
    "masters, sums in bfloat16": (BFLOAT16, *SUMS),
    "float16": ("precision=fp16", "precision.compute=float16"),
}
# The cases of float16 also cover masters at ZeRO 1.
ZERO = {
    "float32": (0, 3),
    "masters": (2, 3),
    "masters, sums in bfloat16": (1,),
    "float16": (1,),
}
DATA = {
    f"{scheme}, zero {zero}": (
        *("recipe=teuken7b", "parallelism.data=2", f"parallelism.zero={zero}"),
        *("parallelism.bucket_elements=100_000", *SCHEMES[scheme]),
    )
    for scheme, stages in ZERO.items()
    for zero in stages
}
# With 8 layers an error in freeing gathered weights would dominate the peak.
DATA["float32, zero 3"] += ("model.num_layers=8", "parallelism.microbatch_sequences=1")
EXPERTS = (
    *("recipe=mula7b_a1b", "parallelism.expert=2", "parallelism.zero=1"),
    "model.mlp.routing=uniform",
)
PIPELINE = ("recipe=teuken7b", "parallelism.pipeline=2")
V = ("parallelism.schedule=zbv", "parallelism.stages_per_rank=2", "model.num_layers=4")
EXCHANGED = ("parallelism.expert_dispatch=all_to_all", "parallelism.expert_overlap=2")
LAYOUTS = DATA | {
    "tensor": ("recipe=teuken7b", "parallelism.tensor=2", "parallelism.sequence_parallel=true"),
    "pipeline": (*PIPELINE, "parallelism.schedule=1f1b"),
    "pipeline in a V": (*PIPELINE, *V),
    "expert": EXPERTS,
    "expert, exchanged in parts": (*EXPERTS, *EXCHANGED),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run two real ranks and a rehearsal once for all layouts."""
    home = tmp_path_factory.mktemp("dryrun")
    found = {}
    for name, words in LAYOUTS.items():
        named = {word.partition("=")[0] for word in words}
        sizes = (word for word in SIZES if word.partition("=")[0] not in named)
        recipe = compose_recipe(read_point([*sizes, *words]))
        folder = home / name.replace(" ", "-").replace(",", "")
        found[name] = create_run_folder(recipe, folder).path
    paths = [str(path) for path in found.values()]
    measured = [[str(HERE / "measured_rank.py"), rank, "2", *paths] for rank in ("0", "1")]
    for together in (measured, [["-c", REHEARSE, *paths]]):  # gloo needs both processors
        run_programs(together)
    return found


def run_programs(programs: list[list[str]]) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, *words], env=environment, stderr=subprocess.PIPE, text=True
        )
        for words in programs
    ]
    stderr = [process.communicate(timeout=1_200)[1] for process in running]
    assert not any(process.returncode for process in running), "\n".join(stderr)


def both(folder: Path, rank: int) -> tuple[dict[str, Any], dict[str, Any]]:
    files = (folder / f"measured-{rank}.json", folder / f"role-{rank}.json")
    measured, rehearsed = (json.loads(file.read_text("utf-8")) for file in files)
    return measured, rehearsed


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_peak_collectives_and_flops_equal_real_ranks(folders, layout, rank):
    measured, rehearsed = both(folders[layout], rank)
    peak = max(peak["bytes"] for peak in rehearsed["peaks"].values())
    tolerance = OF_DATA_RANKS if layout in DATA else TOLERANCE
    assert peak == pytest.approx(measured["peak_bytes"], rel=tolerance)
    names = ("axis", "operation", "dtype", "ranks", "count", "bytes")
    calls = [[call[name] for name in names] for call in rehearsed["collectives"]]
    assert sorted(calls) == sorted(measured["calls"])
    assert rehearsed["flops"] == measured["flops"]


@pytest.mark.parametrize("layout", ["float32, zero 3", "tensor", "pipeline"])
def test_flops_equal_the_formula(folders: dict[str, Path], layout: str) -> None:
    recipe = read_recipe(folders[layout] / "recipe.json")
    counted = sum(
        count for rank in (0, 1) for count in both(folders[layout], rank)[1]["flops"].values()
    )
    assert counted == recipe.derived_numbers.tokens_per_step * flops_per_token(recipe)


def flops_per_token(recipe: Recipe) -> int:
    """Reduce the formula to matrix products: it counts vectors and leaves out padding."""
    shape = recipe.decoder_spec
    layers, norm = shape.num_layers, shape.norm.count_parameters(shape.dim)
    vectors = (2 * layers + 1) * norm
    padding = (shape.padded_vocab_size - shape.vocab_size) * shape.dim
    width = shape.attention.num_heads * shape.attention.head_dim
    again = 2 * layers * width * recipe.budget.sequence_length  # scores, in the backward pass
    assert not shape.attention.bias
    assert not shape.mlp.bias
    return recipe.derived_numbers.flops_per_token.full + 6 * (padding - vectors) + again
