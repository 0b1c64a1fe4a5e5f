"""Which keys of a recipe name files: the schema says so, of every key that is a text."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from command.main import main
from command.recipe.path_checks import places_outside
from components.config.part_nodes import all_specs
from components.config.recipe import Recipe
from components.config.schema.types import Section, choices_of, fields_of, names_place
from components.config.user_overrides import UserOverrides

# Texts of any form that are opened nowhere. A new one belongs here, or is a `Place`.
PLAIN = {
    *("description", "from.fingerprint", "tracking.mlflow.experiment", "tracking.wandb.entity"),
    *(f"data.sources.*.{key}" for key in ("embedded", "placeholder", "column", "language")),
    *(f"data.sources.*.{key}" for key in ("licence", "origin")),
    *(f"data.sources.*.dataset.{key}" for key in ("name", "split", "revision")),
    *("data.preparation.language.keep", "data.preparation.language.except_sources"),
    "data.preparation.filters.except_sources",
    "data.preparation.filters.annotations.categories",
    "data.preparation.filters.text_ratios.link_pieces",
    *(
        f"data.preparation.personal_data.{key}"
        for key in ("emails", "ip_addresses", "phone_numbers", "ibans", "except_sources")
    ),
    *("published.*.value", "published.*.unit", "published.*.source", "assumed.*.reason"),
    *("children.*.fingerprint", "children.*.evaluate.tasks"),
    *("cluster.name", "scale.shrink.filler.*.embedded"),
}
PLACES = {
    *("data.folder", "data.tokenizer_folder", "from.run"),
    *("data.sources.*.files", "data.sources.*.tokens", "data.sources.*.dataset.path"),
    *("checkpoint.copy_to", "checkpoint.local.folder"),
    "data.preparation.filters.text_ratios.stop_words",
    "data.preparation.filters.text_ratios.flagged_words",
}
# A recipe that was received says none of these; those of a run reach jobs only if they are a
# profile's (test_received_site.py).
OF_MACHINE = ("cluster.site.", "cluster.hardware.", "cluster.queues", "cluster.accounting.")
ARGUMENTS = {"pattern", "eod", "normalization_rule_name", "required_chars"}


def texts(kind: type[BaseModel], path: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every field that takes any text, or some; ``*`` stands for a name."""
    for key, field in fields_of(kind).items():
        inner = [*parts(field.annotation)]
        if str in inner and not any(hasattr(one, "pattern") for one in field.metadata):
            yield f"{path}{key}", field
        named = "Mapping" in str(field.annotation)
        for section in inner:
            if isinstance(section, type) and issubclass(section, Section):
                yield from texts(section, f"{path}{key}.{'*.' * named}")


def parts(annotation: Any) -> Iterator[Any]:
    """Yield the types inside; of a mapping the values alone, of a text with a form nothing."""
    args = get_args(annotation)
    if "Mapping" in str(getattr(annotation, "__origin__", "")):
        args = args[1:]
    if any("pattern" in str(one) or "max_length" in str(one) for one in args):
        return
    for one in args:
        yield from parts(one)
    if not args:
        yield annotation


def test_every_text_key_is_a_path_or_listed_as_not_a_path() -> None:
    found = {path for path, _ in texts(Recipe) if not path.startswith(OF_MACHINE)}
    patterned = {"checkpoint.local.folder"}
    assert found | patterned >= PLACES
    marked = {path for path in found | patterned if names_place(Recipe, path.split("."))}
    assert marked == PLACES
    assert found - marked == PLAIN
    texts_of_parts = {
        (key, spec.names_place(key))
        for spec in all_specs().values()
        for key, field in spec.model_fields.items()
        if str in choices_of(field.annotation)
    }
    assert {key for key, is_place in texts_of_parts if is_place} == {"init_from"}
    assert {key for key, is_place in texts_of_parts if not is_place} == ARGUMENTS


@pytest.mark.parametrize("path", sorted({*PLACES, "model.init_from"}))
def test_paths_in_received_trees_are_detected_in_every_form(path: str) -> None:
    for value in ("/etc/passwd", "~/x", ["a", "../x"]):
        tree: Any = value
        for key in reversed(path.replace("*", "eu").split(".")):
            tree = {key: tree}
        tree.setdefault("model", {})["_target_"] = "components.model.decoder.Decoder"
        (found,) = places_outside(tree, UserOverrides([]))
        assert found.startswith(path.replace("*", "eu"))


def test_word_list_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    outside, here = tmp_path / "outside.json", tmp_path / "here"
    outside.write_text('{"en": ["the"]}')
    here.mkdir()
    monkeypatch.chdir(here)
    ratios = {"stop_words": str(outside)}
    tree = {
        "defaults": ["bloom176b", {"override /preparation": "roots"}],
        "name": "mine",
        "description": "A test.",
        "data": {"preparation": {"filters": {"text_ratios": ratios}}},
    }
    (here / "r.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    key = "data.preparation.filters.text_ratios.stop_words"
    assert main(["recipe=./r.yaml", "action=show"]) == 2
    assert f"{key}: '{outside}' leads out" in capfd.readouterr().err.replace("\n", " ")
    assert main(["recipe=./r.yaml", "action=show", f"{key}={outside}"]) == 0
