"""A study of tokenizers: trained here, and counted as the libraries themselves count."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import yaml
from tokenizers import Tokenizer as Engine

from command.arguments import ROOT
from command.main import main
from command.study.outcomes import read_figure_or_none
from command.study.study_file import check_study
from components.errors import RecipeError
from data_prep.sources import choose_split, measure_groups, open_embedded

Said = pytest.CaptureFixture[str]

LANGUAGES = ("de", "fi")
FRACTION, SIZES = 0.25, (640, 704)
SHARES = {"de": 0.75, "fi": 0.25}
KINDS = {"unigram_eu24": "tokenizer.model", "bpe_bloom": "tokenizer.json"}


def tree(**changes: Any) -> dict[str, Any]:
    """The shipped study on two languages and tiny vocabularies."""
    shipped = yaml.safe_load((ROOT / "studies" / "tokenizers.yaml").read_text())
    return {
        **shipped,
        "name": "few",
        "set": {"data.held_out_fraction": FRACTION},
        "grid": {
            "trained_on": ["all", "de"],
            "tokenizer": list(KINDS),
            "tokenizer.vocab_size": list(SIZES),
        },
        "columns": {
            "fi": {"measured": "fertility.fi.tokens_per_word"},
            "bytes a token": {"measured": "mixture.bytes_per_token"},
            "FLOP": {"planned": "derived.flops_per_token.full"},
            "hours a byte": {
                "planned": "bill.device_hours",
                "measured": "mixture.bytes_per_token",
            },
        },
        **changes,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


def words(folder: Path, given: dict[str, Any]) -> list[str]:
    file = folder / f"{given['name']}.yaml"
    file.write_text(yaml.safe_dump(given, sort_keys=False))
    sources = ", ".join(f"{one}: {{files: [], embedded: eu24/{one}}}" for one in LANGUAGES)
    shares = ", ".join(f"{name}: {share}" for name, share in SHARES.items())
    beside = [f"data.sources={{{sources}}}", f"data.shares={{{shares}}}"]
    return ["-m", f"study={file}", f"run={folder / 'runs'}", *beside]


def held_out(language: str) -> list[str]:
    opened = open_embedded(f"eu24/{language}", "test")
    split = choose_split(measure_groups(opened.iter_documents()), FRACTION)
    found = [split.held_out_text(one) for one in opened.iter_documents()]
    return [text for text in found if text]


def recount(point: Path, language: str) -> tuple[int, int, int]:
    """Tokens by the library that trained, words and bytes."""
    texts = held_out(language)
    if (model := point / "tokenizer.model").is_file():
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        tokens = sum(len(processor.encode(text)) for text in texts)
    else:
        engine = Engine.from_file(str(point / "tokenizer.json"))
        tokens = sum(len(engine.encode(text).ids) for text in texts)
    words_of = sum(len(text.split()) for text in texts)
    return tokens, words_of, sum(len(text.encode()) for text in texts)


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """What the study printed; its points have folders."""
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(io.StringIO()) as said:
        patched.chdir(folder)
        patched.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        assert main([*words(folder, tree()), "output=json"]) == 0
    result: dict[str, Any] = json.loads(said.getvalue())
    return result


def test_fertility_equals_the_count_of_the_libraries(
    folder: Path, found: dict[str, Any]
) -> None:
    assert len(found["points"]) == 8
    for one in found["points"]:
        named = ",".join(f"{key}={value}" for key, value in one["point"].items())
        counted = {name: recount(folder / "runs" / named, name) for name in LANGUAGES}
        fertility = {name: tokens / n for name, (tokens, n, _) in counted.items()}
        assert one["columns"]["fi"] == pytest.approx(fertility["fi"])
        assert one["measured"] == pytest.approx(sum(fertility.values()) / 2)
        density = {name: size / tokens for name, (tokens, _, size) in counted.items()}
        mixed = 1 / sum(share / density[name] for name, share in SHARES.items())
        assert one["columns"]["bytes a token"] == pytest.approx(mixed)


def test_columns_show_plan_over_count(found: dict[str, Any], capfd: Said) -> None:
    hours = {}
    for size in SIZES:
        sizes = [f"{key}={size}" for key in ("tokenizer.vocab_size", "model.vocab_size")]
        beside = [*sizes, f"model.padded_vocab_size={size}", "cluster=juwels"]
        assert main(["recipe=teuken7b", *beside, "action=plan", "output=json"]) == 0
        hours[size] = json.loads(capfd.readouterr().out)["bill"]["device_hours"]
    flops = {
        one["point"]["tokenizer.vocab_size"]: one["columns"]["FLOP"] for one in found["points"]
    }
    # The head's two products forward and four backward for each of its new columns.
    assert flops[SIZES[1]] - flops[SIZES[0]] == 6 * 4_096 * (SIZES[1] - SIZES[0])
    for one in found["points"]:
        planned = hours[one["point"]["tokenizer.vocab_size"]]
        expected = planned / one["columns"]["bytes a token"]
        assert one["columns"]["hours a byte"] == pytest.approx(expected, rel=0.01)


def test_counted_points_are_not_trained_again_and_have_a_page(
    folder: Path, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: Said
) -> None:
    monkeypatch.chdir(folder)
    files = sorted((folder / "runs").rglob("tokenizer.*"))
    before = [file.stat().st_mtime_ns for file in files]
    again = words(folder, tree())
    assert main([*again, "output=json"]) == 0
    assert json.loads(capfd.readouterr().out) == found
    assert [file.stat().st_mtime_ns for file in files] == before
    assert main([*again[1:], "action=report"]) == 0
    page = (folder / "few.html").read_text()
    assert "hours a byte" in page
    assert "action=plan" not in page.partition("<h2>Again</h2>")[2]


@pytest.mark.parametrize(
    ("changes", "path", "problem"),
    [
        ({"columns": {"none": {}}}, "columns.none", "neither a measured nor a planned"),
        ({"grid": {"tokenizer": ["../x"]}}, "tokenizer", "unknown tokenizer"),
    ],
)
def test_incomplete_study_is_refused(changes: dict[str, Any], path: str, problem: str) -> None:
    figure = {**tree()["figure"], "x": ["tokenizer"], "series": []}
    given = tree(products={}, grid={"tokenizer": ["bpe_bloom"]}, figure=figure)
    with pytest.raises(RecipeError, match=problem) as caught:
        check_study({**given, **changes}, "few.yaml")
    assert caught.value.path == f"few.yaml.{path}"


def test_an_unknown_source_has_a_message(folder: Path, capfd: Said) -> None:
    grid = {
        "trained_on": ["xx", "fi"],
        "tokenizer": ["bpe_bloom"],
        "tokenizer.vocab_size": [640],
    }
    given = tree(grid=grid, columns={})
    assert main([*words(folder, given), "output=json"]) == 2
    first, second = json.loads(capfd.readouterr().out)["points"]
    assert "unknown source 'xx'" in first["why"]
    assert (first["measured"], "columns" in first) == (None, False)
    assert second["measured"] > 1
    asked = [one for one in words(folder, given) if not one.startswith("run=")]
    assert main([*asked, "action=plan"]) == 2
    assert "a plan has no mean.tokens_per_word" in capfd.readouterr().err


def test_a_named_column_is_a_number_or_unknown() -> None:
    found = {"bill": None, "time": {"mfu": 0.5, "hfu": None}, "name": "x"}
    assert read_figure_or_none(found, "time.mfu", "columns.a") == 0.5
    assert (
        read_figure_or_none(found, "bill.days", ""),
        read_figure_or_none(found, "time.hfu", ""),
    ) == (None, None)
    assert read_figure_or_none(found, "time.mfu + time.mfu", "") == 1.0
    assert read_figure_or_none(found, "time.mfu + time.hfu", "") is None
    for key in ("name", "time.step", "time.mfu.deeper", "time"):
        with pytest.raises(RecipeError, match=f"{key} is not a number there") as caught:
            read_figure_or_none(found, key, "columns.a")
        assert caught.value.path == "columns.a"
