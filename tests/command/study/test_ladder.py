"""Ladders: points by rule, and what a planted law of their runs predicts of a large one."""

import json
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import pytest
import yaml

from command.arguments import ROOT
from command.compose import compose_recipe
from command.main import main
from command.study.request import StudyRequest, ask
from command.study.schema import LadderStudy
from command.study.study_file import check_study
from components.errors import RecipeError
from components.scaling.law import Law

PLANTED = Law(E=1.5, A=40.0, B=300.0, alpha=0.3, beta=0.35, objective=0.0)
# Teuken-7B: 7,452,725,248 parameters less 250,680 padded to 250,880 rows of 4,096, tied.
LARGE, TOKENS = 7_452_725_248 - 250_680 * 4_096, 6_000_000_000_000
PREDICT = ("action=predict", "study=ladder", "recipe=teuken7b", "cluster=juwels")


def shipped() -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((ROOT / "studies" / "ladder.yaml").read_text())
    return tree


def study_of(asked: StudyRequest) -> LadderStudy:
    assert isinstance(asked.study, LadderStudy)
    return asked.study


@pytest.fixture
def ladder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of finished runs whose losses are those of a planted law."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return finished("ladder", tmp_path / "runs")


def finished(name: str, runs: Path) -> Path:
    """Put into a folder what finished runs of a ladder leave there, by the planted law."""
    asked = ask([f"study={name}", "action=report", f"run={runs}"])
    recipe = compose_recipe(asked.arguments_of(study_of(asked).points[-1]))
    for point in study_of(asked).points:
        folder = asked.folder_of(point)
        folder.mkdir(parents=True)
        size, tokens = int(point["non_embedding"]), int(point["budget.total_tokens"])
        counted = {"total": size + 24_576, "active": size + 24_576, "embedding": 24_576}
        derived = {"parameters": counted, "tokens_per_step": 512, "steps": 1, "ranks": 1}
        held_out = {"by_source": {"python_source": PLANTED.loss(size, tokens)}}
        results = {"status": "finished", "tokens": tokens, "held_out": held_out}
        (folder / "derived.json").write_text(json.dumps(derived | {"flops_per_token": {}}))
        (folder / "results.json").write_text(json.dumps(results))
        (folder / "recipe.json").write_text(recipe.model_dump_json())
    return runs


def of_budgets(tree: dict[str, Any], **changes: Any) -> None:
    """Give a ladder's file lengths by FLOPs."""
    del tree["ladder"]["tokens_per_parameter"]
    budgets = {"budgets": [3e11, 1e12, 3e12, 1e13], "tokens_per_parameter": [1, 10_000]}
    tree["ladder"]["flops"] = budgets | changes
    tree["figure"]["series"] = ["flops"]


def test_points_follow_the_rule() -> None:
    """Rates by N^(-1/3) as in arXiv 2412.04403, lengths in whole steps of 512 tokens."""
    study = check_study(shipped(), "ladder.yaml")
    assert isinstance(study, LadderStudy)
    assert len(study.points) == 10
    for point in study.points:
        size, tokens = int(point["non_embedding"]), int(point["budget.total_tokens"])
        assert tokens % 512 == 0
        assert tokens == pytest.approx(int(point["tokens_per_parameter"]) * size, abs=256)
        warmup = int(point["schedule.phases.first.warmup_tokens"])
        assert warmup / tokens == pytest.approx(0.05, abs=0.003)
        rate = float(point["optimizer.lr"])
        assert (
            log(rate / 0.016) / log(size / 14_712 + 1e-12) == pytest.approx(-1 / 3, abs=0.01)
            or size == 14_712
        )
    held_out = [point for point in study.points if study.is_held_out(point)]
    assert {point["non_embedding"] for point in held_out} == {157_840}


def test_sizes_are_what_the_recipes_of_the_points_have() -> None:
    asked = ask(["study=ladder", "action=report"])
    for point in study_of(asked).points[::2]:
        recipe = compose_recipe(asked.arguments_of(point))
        counted = recipe.derived.parameters
        assert counted.total - counted.embedding == point["non_embedding"]
        assert recipe.model["initialization"]["std"] == pytest.approx(
            recipe.model["dim"] ** -0.5, rel=3e-3
        )


def broken(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    tree = shipped()
    change(tree)
    return tree


@pytest.mark.parametrize(
    ("change", "path", "problem"),
    [
        (lambda t: t.update(ladder=[1]), "ladder", "is no mapping"),
        (lambda t: t["ladder"]["sizes"].reverse(), "ladder.sizes", "no rising numbers"),
        (
            lambda t: t["ladder"]["sizes"][0].pop("non_embedding"),
            "ladder.sizes",
            "no rising numbers of parameters",
        ),
        (lambda t: t["set"].pop("budget.global_batch_tokens"), "set", "whole steps"),
        (
            lambda t: t["ladder"].pop("tokens_per_parameter"),
            "ladder.tokens_per_parameter",
            "lengths are by this or by flops",
        ),
        (lambda t: of_budgets(t, budgets=[3, 2, 1]), "ladder.flops.budgets", "do not rise"),
        (
            lambda t: of_budgets(t, tokens_per_parameter=[1, 100]),
            "ladder.flops.budgets",
            r"1e\+12 FLOPs are the lengths of 2 sizes",
        ),
    ],
)
def test_a_ladder_that_no_points_follow_from_is_refused(
    change: Callable[[dict[str, Any]], object], path: str, problem: str
) -> None:
    with pytest.raises(RecipeError, match=problem) as caught:
        check_study(broken(change), "ladder.yaml")
    assert caught.value.path == f"ladder.yaml.{path}"


def test_runs_by_flops_have_the_law_and_the_parabolas_of_their_budgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The largest budget checks the law; both approaches say how to use the FLOPs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "budgets.yaml").write_text(yaml.safe_dump(broken(of_budgets)))
    runs = finished("./budgets.yaml", tmp_path / "runs")
    words = ("action=predict", "study=./budgets.yaml", *PREDICT[2:], f"run={runs}")
    assert main([*words, "output=json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["loss"]["value"] == pytest.approx(PLANTED.loss(LARGE, TOKENS), rel=1e-3)
    apart = [one for one in found["runs"] if one["held_out"]]
    assert len(apart) == 5
    for one in apart:
        assert 6 * one["parameters"] * one["tokens"] == pytest.approx(1e13, rel=1e-3)
    best = found["by_budgets"]
    assert len(best["budgets"]) >= 3
    for one in best["budgets"]:  # parabolas only come near the law
        assert one["parameters"] == pytest.approx(
            PLANTED.optimum(one["flops"]).parameters, rel=0.1
        )
    assert best["exponent"] == pytest.approx(PLANTED.parameters_exponent, abs=0.05)
    assert main(list(words)) == 0
    assert "by parabolas of each budget" in capfd.readouterr().out


def test_a_planted_law_predicts_the_large_run(
    ladder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = ladder.parent / "page.html"
    assert main([*PREDICT, f"run={ladder}", "output=json", f"file={page}"]) == 0
    found = json.loads(capfd.readouterr().out)
    expected = PLANTED.loss(LARGE, TOKENS)
    assert (found["parameters"], found["tokens"]) == (LARGE, TOKENS)
    assert found["loss"]["value"] == pytest.approx(expected, rel=1e-3)
    assert found["loss"]["low"] <= found["loss"]["value"] <= found["loss"]["high"]
    assert found["held_out_error"] < 1e-5
    assert [one["held_out"] for one in found["runs"]].count(True) == 2
    assert found["law"]["runs"] == 8
    assert found["beyond"]["parameters"] == pytest.approx(LARGE / 58_608)
    assert found["beyond"]["flops"] == pytest.approx(LARGE * TOKENS / (58_608 * 1_758_208))
    best = found["optimum"]
    assert best["parameters"] * best["tokens"] == pytest.approx(LARGE * TOKENS)
    assert found["lr"] == pytest.approx(0.016 * (LARGE / 14_712) ** (-1 / 3), rel=5e-3)
    assert found["lr_of_recipe"] == pytest.approx(3e-4)
    assert any("same tokenizer" in note for note in found["notes"])
    assert main(["action=plan", "output=json", *PREDICT[2:]]) == 0
    assert found["plan"] == json.loads(capfd.readouterr().out)["bill"]
    assert "<h1>teuken7b on juwels, predicted by ladder</h1>" in page.read_text("utf-8")


def test_the_terminal_has_law_runs_rate_and_bill(
    ladder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*PREDICT, f"run={ladder}"]) == 0
    said = capfd.readouterr().out
    for text in ("held out", "E + A/N^alpha", "rate by the ladder's rule", "device-hours"):
        assert text in said


@pytest.mark.parametrize(
    ("words", "path", "problem"),
    [
        (PREDICT[:1] + PREDICT[2:], "study", "no ladder is named"),
        (("action=predict", "study=mula_weak", *PREDICT[2:]), "study", "is no ladder"),
        ((*PREDICT, "run=nowhere"), "study", "0 of 10 runs of ladder have a loss in"),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    ladder: Path,
    capfd: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    path: str,
    problem: str,
) -> None:
    assert main(list(words)) == 2
    said = capfd.readouterr().err
    assert f"{path}: " in said
    assert problem in said


def test_a_run_of_another_size_than_the_file_says_is_refused(
    ladder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = next(ladder.iterdir())
    derived = json.loads((run / "derived.json").read_text())
    derived["parameters"]["embedding"] -= 8
    (run / "derived.json").write_text(json.dumps(derived))
    assert main([*PREDICT, f"run={ladder}"]) == 2
    assert "study.ladder.sizes" in capfd.readouterr().err
