"""The gate: what a recipe may name, read from source and never imported."""

import sys

import pytest
import yaml

from command.arguments import ROOT
from components.config.suggestions import nearest
from components.config.targets import check_nodes, read_signature
from components.errors import RecipeError

CHAIN = "components.optim.schedules.Chain"
COSINE = "components.optim.schedules.Cosine"
GOOD = {
    "_target_": COSINE,
    "total_tokens": 8,
    "warmup_tokens": 1,
    "warmup_from": 0.0,
    "start": 1.0,
    "end": 0.1,
}


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "torch.load",
        "builtins.eval",
        "components.model.mlp.torch.hub.load",
        "components.model.mlp.MLP.forward",
        "components.model.mlp.nn.Module",
        "components.model.mlp.nn",
        "components.model.mlp.F",
        "components.nothing.Here",
        "components.model.mlp.Missing",
        "components..model.mlp.MLP",
        "components.model.mlp.MLP ",
        "data_prep.prepare.prepare",
        "components.optim.schedules.dataclass",
        "components/optim/schedules.Cosine",
        ".components.model.mlp.MLP",
        7,
        None,
        ["components.model.mlp.MLP"],
    ],
)
def test_refuses_whatever_this_repository_does_not_define(target: object) -> None:
    with pytest.raises(RecipeError, match=r"schedule\._target_: "):
        check_nodes({"schedule": {"_target_": target}})


def test_a_mapping_in_the_place_of_a_class_has_to_name_one() -> None:
    rotary = {"_target_": "components.model.positions.Rotary", "_partial_": True, "base": 1e4}
    scaling = {"_target_": "components.model.rotary_scaling.LinearScaling", "factor": 8.0}
    check_nodes({"model": {"positions": rotary | {"scaling": scaling}}})
    del scaling["_target_"]
    with pytest.raises(RecipeError, match=r"^model\.positions\.scaling: names no class\n"):
        check_nodes({"model": {"positions": rotary | {"scaling": scaling}}})


def test_an_imported_name_is_not_a_defined_one() -> None:
    with pytest.raises(RecipeError, match="defines no class Tensor"):
        read_signature("components.model.attention.Tensor", "model._target_")


def test_refusing_imports_nothing() -> None:
    before = set(sys.modules)
    with pytest.raises(RecipeError, match=r"no module components\.model\.antigravity"):
        check_nodes({"model": {"_target_": "components.model.antigravity.Thing"}})
    assert {name for name in set(sys.modules) - before if "antigravity" in name} == set()


def test_nodes_inside_lists_and_mappings_are_checked() -> None:
    with pytest.raises(RecipeError, match=r"a\.b\[1\]\.c\._target_: 'os.system' is refused"):
        check_nodes({"a": {"b": [1, {"c": {"_target_": "os.system"}}]}})


def test_a_good_node_passes() -> None:
    check_nodes({"schedule": {"_target_": CHAIN, "phases": {"first": GOOD}}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"warm_up_tokens": 1},
            r"schedule\.warm_up_tokens: .* takes no such key\n.*mean warmup_tokens",
        ),
        ({"total_tokens": "many"}, r"schedule\.total_tokens: 'many' is not int"),
        ({"total_tokens": 8.5}, r"schedule\.total_tokens: 8\.5 is not int"),
        ({"total_tokens": True}, r"schedule\.total_tokens: True is not int"),
        ({"start": "high"}, r"schedule\.start: 'high' is not float"),
        ({"start": None}, r"schedule\.start: None is not float"),
    ],
)
def test_arguments_are_held_against_the_constructor(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        check_nodes({"schedule": GOOD | change})


def test_a_missing_argument_is_named_unless_the_node_is_called_later() -> None:
    node = {key: value for key, value in GOOD.items() if key != "end"}
    with pytest.raises(RecipeError, match=r"needs end\n  set schedule\.end="):
        check_nodes({"schedule": node})
    adamw = yaml.safe_load((ROOT / "conf" / "optimizer" / "adamw.yaml").read_text("utf-8"))
    check_nodes({"optimizer": adamw | {"lr": 1e-3}})  # which lacks the parameters


@pytest.mark.parametrize("partial", [True, "yes"])
def test_a_node_is_partial_where_it_is_called_and_nowhere_else(partial: object) -> None:
    with pytest.raises(RecipeError, match=rf"schedule\._partial_: {partial!r}\n  leave it out"):
        check_nodes({"schedule": GOOD | {"_partial_": partial}})
    adamw = yaml.safe_load((ROOT / "conf" / "optimizer" / "adamw.yaml").read_text("utf-8"))
    del adamw["_partial_"]
    with pytest.raises(RecipeError, match=r"optimizer\._partial_: is missing\n  write opt"):
        check_nodes({"optimizer": adamw | {"lr": 1e-3}})


def test_a_literal_argument_takes_its_choices_only() -> None:
    node = {"_target_": "components.model.initialization.Normal", "std": 0.02}
    node["padding_row"] = None
    check_nodes({"model": {"initialization": node | {"residual": "plain"}}})
    with pytest.raises(
        RecipeError, match=r"initialization\.residual: 'none' is not one of 'scaled'"
    ):
        check_nodes({"model": {"initialization": node | {"residual": "none"}}})


@pytest.mark.parametrize(
    ("section", "target"),
    [
        ("model", "components.model.norms.Norm"),
        ("tokenizer", "components.data.manifest.Manifest"),
        ("tokenizer", "components.data.samples.HeldOutWindows"),
        ("schedule", "components.optim.adamw.AdamW"),
        ("optimizer", "components.optim.schedules.Constant"),
    ],
)
def test_a_class_of_the_right_room_that_is_something_else_is_refused(
    section: str, target: str
) -> None:
    node = {"_target_": target, "_partial_": section == "optimizer"}
    with pytest.raises(RecipeError, match=rf"{section}\._target_: .* is no {section}: it has"):
        check_nodes({section: node})


def test_offers_the_nearest_words_or_all_of_them() -> None:
    assert nearest("tensr", ["tensor", "pipeline"]) == "did you mean tensor?"
    assert nearest("xyz", ["tensor", "pipeline"]) == "known: pipeline, tensor"
