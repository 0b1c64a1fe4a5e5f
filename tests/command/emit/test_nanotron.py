"""What is written for nanotron is what the runs that it trained were configured with.

``tests/data/nanotron`` has the fields of its configuration and two published files.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from command.actions.emit.nanotron import write
from command.arguments import read_point
from command.compose import compose_recipe
from command.main import main
from components.build import build
from components.config.schema.recipe import Recipe
from components.config.schema.types import thaw

DATA = Path(__file__).resolve().parents[2] / "data" / "nanotron"
KINDS: dict[str, Any] = {"int": int, "bool": bool, "str": str, "float": (float, int)}
KINDS |= {"Path": str, "List[float]": list, "List[str]": list, "Union[str, List[str]]": list}


def composed(*words: str) -> Recipe:
    return compose_recipe(read_point([*words, "scale=full"]))


def smollm3(*words: str) -> Recipe:
    """Compose what its first configurations have: the run before its long stages."""
    trunk = ("phases={}", "data=smollm3", "budget.total_tokens=11_135_877_120_000")
    whole = composed("recipe=smollm3_3b", *trunk, *words)
    return whole.model_copy(update={"schedule": whole.schedule["phases"]["trunk"]})


def written(recipe: Recipe) -> dict[str, Any]:
    (text,) = write(recipe, "asked").files.values()
    tree: dict[str, Any] = yaml.safe_load(text)
    return tree


def published(name: str) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((DATA / name).read_text("utf-8"))
    return tree


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {path: tree}
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{path}.{key}" if path else key)
    return found


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Compare the keys that both have; those of the data and of places are left out."""
    one, other = flat(ours), flat(theirs)
    places = ("general.", "tokenizer.", "data_stages", "stages", "checkpoints.checkpoints_path")
    return {
        key: (one[key], other[key])
        for key in one.keys() & other.keys()
        if one[key] != other[key] and not key.startswith(places)
    }


@pytest.mark.parametrize("name", ["smollm3_3b", "playbook1b"])
def test_every_key_is_a_field_of_its_dataclass_and_has_a_value_of_its_kind(name: str) -> None:
    fields = json.loads((DATA / "fields.json").read_text("utf-8"))
    words = ("recipe=playbook1b", "parallelism.context=2")
    tree = written(smollm3() if name == "smollm3_3b" else composed(*words))
    model, optimizer = tree["model"], tree["optimizer"]
    sections = {
        "GeneralArgs": [tree["general"]],
        "CheckpointsArgs": [tree["checkpoints"]],
        "ParallelismArgs": [tree["parallelism"]],
        "ModelArgs": [model],
        "RandomInit": [model["init_method"]],
        "Qwen2Config": [model["model_config"]],
        "TokenizerArgs": [tree["tokenizer"]],
        "TokensArgs": [tree["tokens"]],
        "OptimizerArgs": [optimizer],
        "AdamWOptimizerArgs": [optimizer["optimizer_factory"]],
        "LRSchedulerArgs": [optimizer["learning_rate_scheduler"]],
        "DatasetStageArgs": tree["data_stages"],
        "DataArgs": [stage["data"] for stage in tree["data_stages"]],
        "NanosetDatasetsArgs": [stage["data"]["dataset"] for stage in tree["data_stages"]],
    }
    assert set(sections) == set(fields)
    for name, values in sections.items():
        for key, value in ((key, value) for one in values for key, value in one.items()):
            kind = fields[name][key]
            bare = kind[9:-1] if kind.startswith("Optional[") else kind
            assert value is not None or bare != kind, key
            if bare in KINDS and value is not None:
                assert isinstance(value, KINDS[bare]), (name, key, value)


def test_smollm3_is_what_its_published_configuration_says() -> None:
    tree, theirs = written(smollm3()), published("smollm3.yaml")
    assert differences(tree, theirs) == {
        # Its counter is of steps before a step; the file has the number of the first data
        # step of the decay, counted from 1: its run decayed one step later.
        "optimizer.learning_rate_scheduler.lr_decay_starting_step": (4_198_000, 4_198_001),
    }
    only_ours = flat(tree).keys() - flat(theirs).keys()
    assert {key for key in only_ours if not key.startswith(("data_stages", "stages"))} == {
        # Newer than the file; by default it scales, as the code did before it had the key.
        "model.init_method.scaling_method",
    }
    assert tree["general"]["seed"] == theirs["general"]["seed"]


def test_the_mixtures_of_smollm3_begin_where_its_stages_do() -> None:
    stages = written(smollm3())["data_stages"]
    theirs = published("smollm3.yaml")["stages"]
    for ours, stage in zip(stages, theirs, strict=True):
        assert ours["start_training_step"] == stage["start_training_step"]
        weights, total = (
            ours["data"]["dataset"]["dataset_weights"],
            sum(stage["dataset_weights"]),
        )
        wanted = [weight / total for weight in stage["dataset_weights"]]
        assert sorted(weights) == pytest.approx(sorted(wanted), abs=2e-5)


def test_the_playbook_is_its_base_configuration_with_the_campaigns_sizes() -> None:
    """``scripts/scaling_benchmarks.py`` changes these keys, but for the last three."""
    found = differences(written(composed("recipe=playbook1b")), published("bench.yaml"))
    assert {key.rpartition(".")[2]: ours for key, (ours, _) in found.items()} == {
        "hidden_size": 2_048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 4_096,
        "vocab_size": 131_072,
        "micro_batch_size": 2,
        "batch_accumulation_per_replica": 16,
        "sequence_length": 4_096,
        "dp": 8,
        "tp": 1,
        "train_steps": 4,  # of so many the benchmark measured
        "lr_decay_starting_step": 2,  # null there is the end of the warm-up
        "min_decay_lr": pytest.approx(1e-5, rel=1e-12),  # a share of the peak here
    }


def rate(args: dict[str, Any], step: int) -> float:
    """``lr_lambda`` of nanotron/helpers.py, of a parameter group with the one rate."""
    peak, least = args["learning_rate"], args["min_decay_lr"]
    begin, steps = args["lr_decay_starting_step"], args["lr_decay_steps"]
    if step <= args["lr_warmup_steps"]:
        return float(peak * step / max(args["lr_warmup_steps"], 1))
    if step < begin:
        return float(peak)
    if step >= begin + steps:
        return float(least)
    done = (step - begin) / steps
    left = {
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "linear": 1 - done,
        "1-sqrt": 1 - math.sqrt(done),
    }
    return float(least + (peak - least) * left[args["lr_decay_style"]])


WSD = (
    *("schedule=wsd", "schedule.decay_tokens=8_388_608", "schedule.warmup_tokens=2_097_152"),
    "schedule.warmup_from=0.0",
)


@pytest.mark.parametrize(
    "words",
    [(), WSD, (*WSD, "schedule.decay_shape=1-sqrt"), (*WSD, "schedule.decay_shape=cosine")],
)
def test_every_step_has_the_rate_of_the_recipe(words: tuple[str, ...]) -> None:
    recipe = composed("recipe=playbook1b", *words)
    args = written(recipe)["optimizer"]["learning_rate_scheduler"]
    ours = build(thaw(recipe.schedule), "schedule")
    for step in range(18):
        wanted = recipe.optimizer["lr"] * ours(step * recipe.budget.global_batch_tokens)
        assert rate(args, step) == pytest.approx(wanted, rel=1e-12, abs=1e-20)


def refused(words: list[str], folder: Path, capfd: Any) -> str:
    at = ["action=emit", "engine=nanotron", f"file={folder}", "scale=full", *words]
    assert main(at) == 2
    assert not folder.exists()
    err: str = capfd.readouterr().err
    assert "nanotron 2411b022 cannot say this recipe" in err
    return err


def test_what_it_cannot_say_is_refused_by_its_key_with_what_it_can(
    tmp_path: Path, capfd: Any
) -> None:
    ways = {
        "schedule.warmup_tokens=2_097_153": "schedule.warmup_tokens=2097152",
        "schedule.start=0.9": "schedule.start=1.0",
        "schedule.warmup_from=0.1": "schedule.warmup_from=0.0",
        "optimizer.decay=matrices": "optimizer.decay=all",
        "parallelism.zero=2": "parallelism.zero=1",
        "parallelism.recompute=[mlp]": "parallelism.recompute=full",
        "parallelism.recompute_every=2": "parallelism.recompute_every=1",
        "parallelism.compile=layers": "parallelism.compile=none",
        "data.skip=[[4, 4]]": "data.skip=[]",
        "precision.master=bfloat16": "precision.master=auto",
        "model.mlp.gated=false": "can only be trained here",
    }
    err = refused(["recipe=playbook1b", *ways], tmp_path / "out", capfd)
    for word, remedy in ways.items():
        assert f"\n  {word.partition('=')[0]}: " in err
        assert remedy in err


def test_layouts_that_it_has_no_word_for_are_refused(tmp_path: Path, capfd: Any) -> None:
    words = ["recipe=playbook8b", "cluster=hopper", "parallelism.data=4"]
    words += ["parallelism.data_shard=2", "parallelism.schedule=interleaved"]
    words += ["data.mixture=natural", "data.shares={}"]
    err = refused([*words, "parallelism.stages_per_rank=2"], tmp_path / "out", capfd)
    for key in ("data_shard", "schedule", "stages_per_rank"):
        assert f"\n  parallelism.{key}: " in err
    assert "\n  data.mixture: it has shares" in err
    words = ["recipe=playbook1b", "cluster=hopper", "parallelism.data=2"]
    words += ["model.attention.num_kv_heads=2", "parallelism.tensor=4"]
    assert "\n  parallelism.tensor: " in refused(words, tmp_path / "out", capfd)


def test_a_mixture_that_begins_inside_a_step_is_refused(tmp_path: Path, capfd: Any) -> None:
    words = ["recipe=smollm3_3b", "data.phases.second.from_tokens=8_139_571_204_096"]
    assert "\n  data.phases: they begin with a step" in refused(words, tmp_path / "out", capfd)


def test_no_word_of_the_recipe_is_more_than_a_text_of_the_file(tmp_path: Path) -> None:
    words = ['data.tokenizer_folder="a\'b: !!python/object"', "recipe=playbook1b"]
    recipe = composed(*words)
    (text,) = write(recipe, "two\nlines: of\u2028words").files.values()
    assert text.splitlines()[0].endswith("two lines: of words`.")
    name = yaml.safe_load(text)["tokenizer"]["tokenizer_name_or_path"]
    assert name.endswith("a'b: !!python/object")
