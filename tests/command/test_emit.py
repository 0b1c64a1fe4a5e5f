"""``action=export engine=`` says a recipe to another trainer, or what of it cannot be said."""

import ast
import json
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.main import main
from components.build import build_node
from components.config.recipe import Recipe
from components.config.schema.types import to_plain

Said = pytest.CaptureFixture[str]

DATA = Path(__file__).resolve().parents[1] / "data" / "torchtitan"
KINDS: dict[str, Any] = {"int": int, "bool": bool, "str": str, "float": (float, int)}
# A recipe of Llama's parts whose every key torchtitan can say.
SAID = [
    *("recipe=playbook1b", "model.tied_embeddings=false", "parallelism.zero=2"),
    *("parallelism.data=auto", "scale=full"),
]
EIGHT = ("cluster=hopper", "parallelism.data=8")


def said(*words: str) -> list[str]:
    """Put these words in the place of those of the recipe that can be said."""
    named = {word.partition("=")[0] for word in words}
    return [*words, *(word for word in SAID if word.partition("=")[0] not in named)]


def emit(folder: Path, *words: str) -> Path:
    assert main(["action=export", "engine=torchtitan", f"file={folder}", *said(*words)]) == 0
    return folder


def composed(*words: str) -> Recipe:
    return compose_recipe(read_point(said(*words)))


def rate_of(folder: Path) -> Callable[[int], float]:
    """Take the one function of the module that needs no torchtitan."""
    (file,) = folder.glob("recipe_*.py")
    functions: list[ast.stmt] = [
        node
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "rate"
    ]
    scope: dict[str, Any] = {"math": math}
    exec(compile(ast.Module(functions, []), str(file), "exec"), scope)
    rate: Callable[[int], float] = scope["rate"]
    return rate


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("parallelism.recompute=full", "parallelism.recompute_every=2"),
        ("parallelism.recompute=selective", "parallelism.compile=layers"),
        ("precision.compute=float32", "data.tokenizer_folder=tokens"),
    ],
)
def test_every_key_is_known_with_its_type(words: tuple[str, ...], tmp_path: Path) -> None:
    folder = emit(tmp_path / "out", *words)
    known = json.loads((DATA / "job_config.json").read_text("utf-8"))
    tree = tomllib.loads((folder / "playbook1b.toml").read_text("utf-8"))
    for section, keys in tree.items():
        for key, value in keys.items():
            kind = known[section][key]
            if kind.startswith("typing.Literal"):
                assert f"'{value}'" in kind, key
            elif kind in KINDS:
                assert isinstance(value, KINDS[kind]), key
            else:
                assert type(value).__name__ in kind, key


def test_exported_numbers_equal_the_recipe(tmp_path: Path) -> None:
    folder = emit(tmp_path / "out", "parallelism.zero=3", *EIGHT)
    tree = tomllib.loads((folder / "playbook1b.toml").read_text("utf-8"))
    training, degrees = tree["training"], tree["parallelism"]
    assert training["global_batch_size"] * training["seq_len"] == 1_048_576
    assert training["steps"] == 3
    assert degrees["data_parallel_shard_degree"] == 8
    assert degrees["data_parallel_replicate_degree"] == 1
    assert degrees["fsdp_reshard_after_forward"] == "always"
    assert tree["optimizer"]["weight_decay"] == 0.01
    assert tree["debug"]["seed"] == 42


WSD = ("schedule=wsd", "schedule.decay_tokens=4_194_304")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("schedule.warmup_tokens=0",),
        WSD,
        (*WSD, "schedule.decay_shape=1-sqrt"),
        (*WSD, "schedule.decay_shape=cosine", "schedule.warmup_from=0.1"),
    ],
)
def test_every_step_has_the_rate_of_the_recipe(words: tuple[str, ...], tmp_path: Path) -> None:
    rate = rate_of(emit(tmp_path / "out", *words))
    recipe = composed(*words)
    ours = build_node(to_plain(recipe.schedule), "schedule")
    for step in range(20):
        tokens = step * recipe.budget.global_batch_tokens
        assert rate(step) == pytest.approx(ours(tokens), rel=1e-15, abs=0.0)


def test_initial_weights_are_truncated_as_in_the_recipe(tmp_path: Path) -> None:
    (plain,) = emit(tmp_path / "plain").glob("recipe_*.py")
    assert "nn.init.normal_(weight, std=" in plain.read_text("utf-8")
    (cut,) = emit(tmp_path / "cut", "model.initialization.cutoff=3.0").glob("recipe_*.py")
    module = cut.read_text("utf-8")
    assert "nn.init.trunc_normal_(weight, std=std, a=-3.0 * std, b=3.0 * std)" in module
    assert "normal_(weight, std=0.02" not in module
    ast.parse(module)


def refused(capfd: Said, folder: Path, *words: str) -> str:
    assert main(["action=export", "engine=torchtitan", f"file={folder}", *words]) == 2
    assert not folder.exists()
    return capfd.readouterr().err


MUP = (
    "model.parametrization={_target_: components.model.parametrization.MuP, "
    "_partial_: true, base_dim: 1024}"
)
MTP = (
    "model.mtp={_target_: components.model.mtp.MultiTokenPrediction, "
    "_partial_: true, depth: 1, loss_weight: 0.3}"
)
RAMP = "budget.ramp_up={start_tokens: 524288, increment_tokens: 524288, over_tokens: 1048576}"
# Keys that it cannot say: with the value that is asked for, and the one that is offered.
CANNOT = {
    "model": """tied_embeddings true false, attention.head_dim 32 64, dropout 0.1 0.0,
        attention.bias true false, attention.output_gate true false,
        positions.rotary_fraction 0.5 1.0, attention.sinks true false, init_from weights none,
        attention.dropout 0.1 0.0, initialization.padding_row 1 null, mlp.swiglu_limit 7 null,
        initialization.std fan_in 0.02, initialization.residual zero plain,
        initialization.embedding_std 1 null, initialization.head_std 0 null,
        z_loss 1e-5 0.0, mlp.swiglu_alpha 1.5 1.0, mlp.linear_offset 1 0.0""",
    "optimizer": "decay matrices all, decay_order after before, clip_after_tokens 9 0",
    "data": "document_mask true false, packing best_fit concatenate, loss_after_eod false true",
    "parallelism": "gc_every_steps never 50, recompute [mlp] selective",
    "schedule": "planned_tokens 9_000_000_000_000 null",
}
UNSPLIT = ("parallelism.zero=0", "parallelism.tensor=2")
# The same, where one key alone does not say it.
GIVEN: list[tuple[list[str], list[str]]] = [
    (["model.mlp.activation=gelu"], ["model.mlp.activation=silu"]),
    (["precision=fp16"], ["precision.compute=bfloat16"]),
    ([*WSD, "schedule.decay_shape=exponential"], ["schedule.decay_shape=linear"]),
    (
        [*EIGHT, "parallelism.zero=1", "parallelism.pipeline=2"],
        ["parallelism.zero=2", "parallelism.pipeline=1"],
    ),
    (
        [*EIGHT, *UNSPLIT, "parallelism.sequence_parallel=false"],
        ["parallelism.zero=2", "parallelism.sequence_parallel=true"],
    ),
    (["optimizer=ademamix", MUP], ["optimizer=adamw", "model.parametrization=null"]),
    ([RAMP, MTP], ["budget.ramp_up=none", "model.mtp=null"]),
    (["data.goldfish={one_in: 50, window_tokens: 50}"], ["data.goldfish=none"]),
    (["phases={late: {from_fraction: 0.5, data: {document_mask: true}}}"], ["phases={}"]),
    (
        ["from.recipe=playbook1b", "from.with=weights", "model.tied_embeddings=true"],
        ["from=null"],
    ),
    (
        ["recipe=mula7b_a1b", "model.mlp.shared_ffn_dim=512", "model.mlp.shared_gate=true"],
        ["model.mlp.shared_gate=false"],
    ),
]
for section, keys in CANNOT.items():
    each = [one.split() for one in keys.split(",")]
    GIVEN.append((
        [f"{section}.{key}={asked}" for key, asked, _ in each],
        [f"{section}.{key}={offered}" for key, _, offered in each],
    ))


@pytest.mark.parametrize(("words", "offered"), GIVEN)
def test_unsupported_key_has_remedy(words, offered, tmp_path, capfd):
    err = refused(capfd, tmp_path / "out", *said(*words))
    assert "torchtitan 0.2.2 cannot train this recipe" in err
    for word in offered:
        assert f"\n  {word.partition('=')[0]}" in err
        assert f"set {word}" in err


def test_keys_without_a_counterpart_require_training_here(tmp_path: Path, capfd: Any) -> None:
    """A part of a model, and a family with all that it lacks."""
    keys = ("norm_placement=both", "embedding_scale=sqrt_dim", "attention.scale_dim=16")
    err = refused(capfd, tmp_path / "out", *said(*(f"model.{key}" for key in keys)))
    for key in keys:
        assert f"\n  model.{key.partition('=')[0]}" in err
    assert "train this model here" in err
    err = refused(capfd, tmp_path / "out", "recipe=bloom7b1", "scale=full")
    for key in ("positions", "norm", "embedding_norm", "attention.bias", "mlp", "tied_emb"):
        assert f"\n  model.{key}" in err


def test_an_export_needs_a_new_folder_and_a_known_engine(tmp_path: Path, capfd: Any) -> None:
    folder = emit(tmp_path / "out")
    assert "put the run's tokenizer.json" in capfd.readouterr().err
    assert main(["action=export", "engine=torchtitan", *SAID, f"file={folder}"]) == 2
    assert "out already exists" in capfd.readouterr().err
    assert main(["action=export", "engine=torchtitan", *SAID]) == 2
    assert "file: a new folder is required" in capfd.readouterr().err
    assert main(["action=export", "engine=nanotron", *SAID]) == 2
    assert "engine: input should be 'torchtitan', got 'nanotron'" in capfd.readouterr().err
