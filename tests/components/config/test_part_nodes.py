"""Nodes of a recipe against the specifications of their classes."""

import inspect
import subprocess
import sys
from typing import Any

import pytest
import yaml

from command.arguments import ROOT
from components.config.check import read_fields
from components.config.part_nodes import SECTIONS, all_specs, check_nodes
from components.config.schema.part import ModelPartSpec
from components.data.tokenizer import Tokenizer
from components.errors import RecipeError

# A decoder keeps these settings; nothing is built from them.
KEPT_AS_THEY_ARE = {"components.model.initialization.Normal"}
CHAIN = "components.optim.schedules.Chain"
COSINE = "components.optim.schedules.Cosine"
GOOD = {"_target_": COSINE, "total_tokens": 8, "warmup_tokens": 1, "warmup_from": 0.0}
GOOD |= {"start": 1.0, "end": 0.1}


def adamw() -> dict[str, Any]:
    text = (ROOT / "conf" / "optimizer" / "adamw.yaml").read_text("utf-8")
    return {**yaml.safe_load(text), "lr": 1e-3}


@pytest.mark.parametrize(
    "target",
    [
        *("os.system", "torch.load", "builtins.eval", "data_prep.prepare.prepare_folder"),
        *("components.model.mlp.torch.hub.load", "components.model.mlp.MLP.forward"),
        *("components.model.mlp.nn.Module", "components.model.mlp.nn"),
        *("components.model.mlp.F", "components.nothing.Here", "components.model.mlp.Missing"),
        *("components..model.mlp.MLP", ".components.model.mlp.MLP"),
        *("components.model.mlp.MLP ", "components.optim.schedules.dataclass"),
        *("components/optim/schedules.Cosine", 7, None, ["components.model.mlp.MLP"]),
    ],
)
def test_classes_without_a_specification_are_refused(target: object) -> None:
    with pytest.raises(RecipeError, match=r"schedule\._target_: "):
        check_nodes({"schedule": {"_target_": target}})


def test_a_mapping_instead_of_a_class_needs_a_target() -> None:
    rotary = {"_target_": "components.model.positions.Rotary", "_partial_": True, "base": 1e4}
    scaling = {"_target_": "components.model.rotary_scaling.LinearScaling", "factor": 8.0}
    check_nodes({"model": {"positions": rotary | {"scaling": scaling}}})
    del scaling["_target_"]
    with pytest.raises(RecipeError, match=r"^model\.positions\.scaling: missing _target_\n"):
        check_nodes({"model": {"positions": rotary | {"scaling": scaling}}})


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_without_a_class_is_refused(section: str) -> None:
    with pytest.raises(RecipeError, match=rf"{section}: missing _target_\n.*conf/{section}/"):
        read_fields({section: {}})


def test_checking_imports_no_class() -> None:
    """In a process of its own: this one has imported torch long ago."""
    program = (
        "import sys; import components.config.batch_ramp; "
        "from components.config.part_nodes import check_nodes; "
        "from components.errors import RecipeError\n"
        "try: check_nodes({'model': {'_target_': 'antigravity.Thing'}})\n"
        "except RecipeError: pass\n"
        f"check_nodes({{'schedule': {GOOD!r}}}); "
        "print([name for name in sys.modules if name.partition('.')[0] in "
        "{'antigravity', 'torch'} or name.startswith('components.optim')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("target", sorted(set(all_specs()) - KEPT_AS_THEY_ARE))
def test_every_specification_has_a_class_that_accepts_it(target: str) -> None:
    spec = all_specs()[target]
    kind = spec.load_class()
    assert f"{kind.__module__}.{kind.__name__}" == target
    arguments = inspect.signature(kind).parameters
    if issubclass(spec, ModelPartSpec):
        assert inspect.get_annotations(kind.__init__)["spec"] in spec.__mro__
    elif issubclass(kind, Tokenizer):  # takes all settings of its specification
        assert arguments["settings"].kind is inspect.Parameter.VAR_KEYWORD
    elif not issubclass(kind, spec):  # a schedule is its own specification
        assert set(spec.model_fields) == arguments.keys() - {"parameters"}
        for name, field in spec.model_fields.items():
            required = arguments[name].default is inspect.Parameter.empty
            assert field.is_required() == required
            assert required or arguments[name].default == field.default


def test_nodes_inside_lists_and_mappings_are_checked() -> None:
    check_nodes({"schedule": {"_target_": CHAIN, "phases": {"first": GOOD}}})
    said = r"a\.b\[1\]\.c\._target_: 'os.system' is not allowed"
    with pytest.raises(RecipeError, match=said):
        check_nodes({"a": {"b": [1, {"c": {"_target_": "os.system"}}]}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"warm_up_tokens": 1}, r"\.warm_up_tokens: unknown key of .*\n.*mean warmup_tokens"),
        ({"total_tokens": "many"}, r"schedule\.total_tokens: .* valid integer, got 'many'"),
        ({"total_tokens": 8.5}, r"schedule\.total_tokens: .* valid integer, got 8\.5"),
        ({"total_tokens": True}, r"schedule\.total_tokens: .* valid integer, got True"),
        ({"start": "high"}, r"schedule\.start: .* valid number, got 'high'"),
        ({"start": None}, r"schedule\.start: .* valid number, got None"),
    ],
)
def test_settings_are_checked_against_the_specification(change, message):
    with pytest.raises(RecipeError, match=message):
        check_nodes({"schedule": GOOD | change})


def test_a_missing_argument_is_named_unless_the_node_is_called_later() -> None:
    node = {key: value for key, value in GOOD.items() if key != "end"}
    with pytest.raises(RecipeError, match=r"schedule\.end: missing\n  set schedule\.end="):
        check_nodes({"schedule": node})
    check_nodes({"optimizer": adamw()})  # which lacks the parameters


@pytest.mark.parametrize("partial", [True, "yes"])
def test_a_node_is_partial_only_if_it_is_called_later(partial: object) -> None:
    with pytest.raises(RecipeError, match=rf"schedule\._partial_: {partial!r}\n  remove"):
        check_nodes({"schedule": GOOD | {"_partial_": partial}})
    whole = {key: value for key, value in adamw().items() if key != "_partial_"}
    with pytest.raises(RecipeError, match=r"optimizer\._partial_: missing\n  write opt"):
        check_nodes({"optimizer": whole})


def test_a_literal_argument_accepts_only_its_choices() -> None:
    node = {"_target_": "components.model.initialization.Normal", "std": 0.02}
    node["padding_row"] = None
    check_nodes({"model": {"initialization": node | {"residual": "plain"}}})
    said = r"initialization\.residual: .* 'scaled', 'plain' or 'zero', got 'none'"
    with pytest.raises(RecipeError, match=said):
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
def test_a_class_of_the_wrong_kind_is_refused(section, target):
    node = {"_target_": target, "_partial_": section == "optimizer"}
    with pytest.raises(RecipeError, match=rf"{section}\._target_: .* {section}\n"):
        check_nodes({section: node})
