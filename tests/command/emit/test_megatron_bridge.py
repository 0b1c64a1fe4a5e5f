"""What is written for Megatron-Bridge has its fields, and the values of runs by Megatron.

``tests/data/megatron_bridge`` has the fields and what three runs were started with.
"""

import ast
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from command.actions.emit.megatron_bridge import write
from command.arguments import read_point
from command.compose import compose_recipe
from command.main import main
from components.build import build
from components.config.schema.recipe import Recipe
from components.config.schema.types import thaw

DATA = Path(__file__).resolve().parents[2] / "data" / "megatron_bridge"


def composed(*words: str) -> Recipe:
    return compose_recipe(read_point([*words, "scale=full"]))


def apertus() -> Recipe:
    """Compose it but for what Megatron-Bridge has no word for."""
    words = ["recipe=apertus_8b", "model.mlp.gated=true", "model.mlp.activation=silu"]
    recipe = composed(*words, "data.goldfish=none", "data.document_mask=false")
    adam = dict(composed("recipe=viking_7b").optimizer)
    changed = {key: recipe.optimizer[key] for key in adam if key in recipe.optimizer}
    changed["_target_"] = adam["_target_"]
    data = recipe.data.model_copy(update={"phases": {}})
    parts = {"optimizer": adam | changed, "data": data, "phases": {}}
    return Recipe.model_validate(recipe.model_copy(update=parts).model_dump())


RECIPES: dict[str, Callable[[], Recipe]] = {
    "opensci_1b7": lambda: composed("recipe=opensci_1b7"),
    "viking_7b": lambda: composed("recipe=viking_7b"),
    "apertus_8b": apertus,
}


def text_of(recipe: Recipe, asked: str = "asked") -> str:
    (text,) = write(recipe, asked).files.values()
    return text


def read(text: str) -> dict[str, dict[str, Any]]:
    """Read the arguments of each section; names of the file's own stay texts."""
    tree = ast.parse(text)
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    (returned,) = function.body
    assert isinstance(returned, ast.Return)
    assert isinstance(returned.value, ast.Call)
    found: dict[str, dict[str, Any]] = {}
    for section in returned.value.keywords:
        assert isinstance(section.value, ast.Call)
        kind = ast.unparse(section.value.func).rpartition(".")[2]
        values = {str(one.arg): _value(one.value) for one in section.value.keywords}
        found[str(section.arg)] = {"": kind, **values}
    return found


def _value(node: ast.expr) -> Any:
    return ast.unparse(node) if isinstance(node, ast.Attribute) else ast.literal_eval(node)


@pytest.mark.parametrize("name", RECIPES)
def test_every_argument_is_a_field_of_its_dataclass(name: str) -> None:
    fields = json.loads((DATA / "fields.json").read_text("utf-8"))
    for section, values in read(text_of(RECIPES[name]())).items():
        assert section in fields["ConfigContainer"].split()
        assert values.keys() - {""} <= set(fields[values[""]].split()), section


# Ours and theirs where they are apart.
APART: dict[str, dict[str, Any]] = {
    "opensci_1b7": {"sequence_parallel": (False, True)},  # with one rank it does nothing
    "viking_7b": {"train_samples": (488_282_112, 488_281_250)},  # the last step is whole
    "apertus_8b": {
        "train_samples": (3_662_108_672, 3_662_109_375),  # of 2,627,139 whole steps
        "manual_gc_interval": (50, 500),  # the machine's own affair
    },
}


@pytest.mark.parametrize("name", APART)
def test_values_are_those_of_the_published_run(name: str) -> None:
    published = yaml.safe_load((DATA / "published.yaml").read_text("utf-8"))[name]
    ours, found = read(text_of(RECIPES[name]())), {}
    for section, values in published.items():
        for key, value in values.items():
            if isinstance(value, str) and " " in value:
                one, sign, other = value.split()
                value = int(one) * int(other) if sign == "*" else int(one) // int(other)
            is_float = isinstance(value, float)
            if ours[section][key] != (pytest.approx(value, rel=1e-12) if is_float else value):
                found[key] = (ours[section][key], value)
    assert found == APART[name]


def rate(optimizer: dict[str, Any], scheduler: dict[str, Any], samples: int) -> float:
    """``OptimizerParamScheduler.get_lr`` of Megatron-LM, after so many samples."""
    peak, least, first = optimizer["lr"], optimizer["min_lr"], scheduler["lr_warmup_init"]
    warmup, steps = scheduler["lr_warmup_samples"], scheduler["lr_decay_samples"]
    if warmup > 0 and samples <= warmup:
        return float(first + (peak - first) * samples / warmup)
    if samples > steps:
        return float(least)
    if scheduler["lr_decay_style"] == "cosine":
        left = 0.5 * (math.cos(math.pi * (samples - warmup) / (steps - warmup)) + 1)
    else:
        begin = steps - scheduler["lr_wsd_decay_samples"]
        done = max(0, samples - begin) / scheduler["lr_wsd_decay_samples"]
        left = {
            "linear": 1 - done,
            "cosine": 0.5 * (math.cos(math.pi * done) + 1),
            "exponential": 2 * math.pow(0.5, done) - 1,
            "minus_sqrt": 1 - math.sqrt(done),
        }[scheduler["lr_wsd_decay_style"]]
    return float(least + left * (peak - least))


WSD = (
    *("schedule=wsd", "schedule.decay_tokens=8_388_608", "schedule.warmup_tokens=2_097_152"),
    "schedule.warmup_from=0.0",
)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("schedule.planned_tokens=20_971_520", "schedule.warmup_from=0.1"),
        WSD,
        (*WSD, "schedule.decay_shape=1-sqrt"),
        (*WSD, "schedule.decay_shape=exponential"),
    ],
)
def test_every_step_has_the_rate_of_the_recipe(words: tuple[str, ...]) -> None:
    recipe = composed("recipe=playbook1b", "optimizer.decay=matrices", *words)
    found = read(text_of(recipe))
    ours, samples = build(thaw(recipe.schedule), "schedule"), recipe.derived.samples_per_step
    for step in range(16):
        wanted = recipe.optimizer["lr"] * ours(step * recipe.budget.global_batch_tokens)
        theirs = rate(found["optimizer"], found["scheduler"], step * samples)
        assert theirs == pytest.approx(wanted, rel=1e-12, abs=1e-20)


def refused(words: list[str], folder: Path, capfd: Any) -> str:
    at = ["action=emit", "engine=megatron-bridge", f"file={folder}", "scale=full", *words]
    assert main(at) == 2
    assert not folder.exists()
    err: str = capfd.readouterr().err
    assert "Megatron-Bridge 067f987 cannot say this recipe" in err
    return err


def test_what_it_cannot_say_is_refused_by_its_key_with_what_it_can(
    tmp_path: Path, capfd: Any
) -> None:
    ways = {
        "optimizer.decay=all": "optimizer.decay=matrices",
        "schedule.start=0.9": "schedule.start=1.0",
        "schedule.warmup_tokens=2_097_153": "schedule.warmup_tokens=2097152",
        "precision.reduce=bfloat16": "set precision.reduce=float32 precision.accumulate",
        "model.initialization.residual=plain": "model.initialization.residual=scaled",
        "model.initialization.padding_row=1": "model.initialization.padding_row=null",
        "model.positions.base=10000.5": "can only be trained here",
        "data.document_mask=true": "data.document_mask=false",
        "parallelism.zero=3": "parallelism.zero=1",
        "parallelism.recompute=selective": "parallelism.recompute=full",
        "parallelism.recompute_every=2": "parallelism.recompute_every=1",
        "parallelism.compile=layers": "parallelism.compile=none",
        "parallelism.schedule=gpipe": "parallelism.schedule=1f1b",
    }
    err = refused(["recipe=playbook1b", *ways], tmp_path / "out", capfd)
    for word, remedy in ways.items():
        assert f"\n  {word.partition('=')[0]}: " in err
        assert remedy in err


def test_mixtures_that_change_and_moments_over_a_part_of_the_ranks_are_refused(
    tmp_path: Path, capfd: Any
) -> None:
    words = ["recipe=smollm3_3b", "parallelism.zero=1", "parallelism.data_shard=12"]
    err = refused(words, tmp_path / "out", capfd)
    for key in ("data.phases", "parallelism.data_shard"):
        assert f"\n  {key}: " in err
    words = ["recipe=playbook1b", "data.mixture=natural", "data.shares={}"]
    assert "\n  data.mixture: it has weights" in refused(words, tmp_path / "out", capfd)


def test_stages_in_turns_and_a_source_of_several_files_are_said() -> None:
    words = ["recipe=playbook8b", "cluster=hopper", "optimizer.decay=matrices"]
    words += ["parallelism.schedule=interleaved", "parallelism.stages_per_rank=2"]
    recipe = composed(*words, "parallelism.recompute=full")
    (source,) = recipe.data.shares
    files = recipe.data.sources[source].model_copy(update={"tokens": ("a/one", "it's/two")})
    data = recipe.data.model_copy(update={"sources": {source: files}})
    found = read(text_of(recipe.model_copy(update={"data": data})))
    assert found["model"]["virtual_pipeline_model_parallel_size"] == 2
    assert found["model"]["recompute_granularity"] == "full"
    assert found["dataset"]["blend"] == (["a/one", "it's/two"], [0.5, 0.5])


def test_no_word_of_the_recipe_runs_as_code() -> None:
    folder = "a'); import os  # \\\"{x}"
    recipe = composed("recipe=opensci_1b7")
    data = recipe.data.model_copy(update={"tokenizer_folder": folder})
    text = text_of(recipe.model_copy(update={"data": data}), "why\nimport os {commit}")
    assert text.splitlines()[0].endswith("why import os {commit}`.")
    assert read(text)["tokenizer"]["tokenizer_model"].endswith(folder)
    plain = text_of(recipe)
    assert ast.dump(ast.parse(plain)).count("Import") == ast.dump(ast.parse(text)).count(
        "Import"
    )
