"""Ladders: points by rule, and what a planted law of their runs predicts of a large one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from command.arguments import ROOT
from command.composition.compose import compose_recipe
from command.main import main
from command.study.request import StudyRequest, read_study_request
from command.study.schema import LadderStudy
from command.study.study_file import check_study
from components.command_line import command_line
from components.errors import RecipeError
from components.scaling.law import Law

Said = pytest.CaptureFixture[str]

PLANTED = Law(E=1.5, A=56.0, B=300.0, alpha=0.3, beta=0.35, objective=0.0)
# Teuken-7B: 7,452,725,248 parameters less 250,680 padded to 250,880 rows of 4,096, tied.
LARGE, TOKENS = 7_452_725_248 - 250_680 * 4_096, 6_000_000_000_000
PREDICT = ("action=plan", "study=ladder", "recipe=teuken7b", "cluster=juwels")


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
    request = read_study_request([f"study={name}", "action=report", f"run={runs}"])
    recipe = compose_recipe(request.arguments_of(study_of(request).points[-1]))
    for point in study_of(request).points:
        folder = request.folder_of(point)
        folder.mkdir(parents=True)
        size, tokens = int(point["non_embedding"]), int(point["budget.total_tokens"])
        counted = {"total": size + 24_576, "active": size + 24_576, "embedding": 24_576}
        derived = {"parameters": counted, "tokens_per_step": 512, "steps": 1, "ranks": 1}
        loss = PLANTED.predict_loss(size, tokens)
        held_out = {"by_source": {"en": loss}, "final": loss, "final_unweighted": loss}
        results = {"status": "finished", "tokens": tokens, "held_out": held_out}
        (folder / "derived.json").write_text(json.dumps(derived | {"flops_per_token": {}}))
        (folder / "results.json").write_text(json.dumps(results))
        (folder / "recipe.json").write_text(recipe.model_dump_json())
    return runs


def of_ratios(tree: dict[str, Any], *ratios: int) -> None:
    """Give a ladder's file lengths by tokens a parameter."""
    del tree["ladder"]["flops"]
    tree["ladder"]["tokens_per_parameter"] = list(ratios)
    tree["figure"]["series"] = ["tokens_per_parameter"]


def rate_of(size: float) -> float:
    """The file's rule: by the root of the parameters, as muP's by the width."""
    return float(0.009 * (size / 104_768) ** -0.5)


def test_points_follow_the_rule() -> None:
    """Budgets of 6 N D, in whole steps of 1,024 tokens, each for the sizes that it suits."""
    study = check_study(shipped(), "ladder.yaml")
    assert isinstance(study, LadderStudy)
    assert len(study.points) == 24
    for point in study.points:
        size, tokens = int(point["non_embedding"]), int(point["budget.total_tokens"])
        assert tokens % 1_024 == 0
        assert 6 * size * tokens == pytest.approx(float(point["flops"]), rel=1e-3)
        assert 6 <= tokens / size <= 350
        assert study.collect_values(point)["schedule.phases.first.total_tokens"] == tokens
        warmup = int(point["schedule.phases.first.warmup_tokens"])
        assert warmup / tokens == pytest.approx(0.05, abs=0.001)
        assert float(point["optimizer.lr"]) == pytest.approx(rate_of(size), rel=5e-3)
    held_out = {
        point["non_embedding"]: point["flops"]
        for point in study.points
        if study.is_held_out(point)
    }
    assert held_out == dict.fromkeys([104_768, 157_840, 229_344, 402_048], 8e12)


def test_lengths_may_be_tokens_per_parameter() -> None:
    """Then the largest size is held out; a run has whole steps."""
    study = check_study(broken(lambda tree: of_ratios(tree, 10, 30)), "ladder.yaml")
    assert isinstance(study, LadderStudy)
    assert len(study.points) == 12
    for point in study.points:
        expected = int(point["tokens_per_parameter"]) * int(point["non_embedding"])
        assert int(point["budget.total_tokens"]) == pytest.approx(expected, abs=512)
    held_out = [point for point in study.points if study.is_held_out(point)]
    assert [point["non_embedding"] for point in held_out] == [402_048, 402_048]


def test_sizes_equal_the_recipes_of_the_points() -> None:
    request = read_study_request(["study=ladder", "action=report"])
    for point in study_of(request).points[::5]:
        recipe = compose_recipe(request.arguments_of(point))
        counted, std = recipe.derived_numbers.parameters, recipe.model["dim"] ** -0.5
        assert counted.total - counted.embedding == point["non_embedding"]
        assert recipe.model["initialization"]["std"] == pytest.approx(std, rel=3e-3)


def flops(tree: dict[str, Any], **changes: list[int]) -> None:
    tree["ladder"]["flops"].update(changes)


def broken(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    tree = shipped()
    change(tree)
    return tree


@pytest.mark.parametrize(
    ("change", "path", "problem"),
    [
        (lambda t: t.update(ladder=[1]), "ladder", "is not a mapping"),
        (lambda t: t["ladder"]["sizes"].reverse(), "ladder.sizes", "not increasing numbers"),
        (lambda t: t["set"].pop("budget.global_batch_tokens"), "set", "a ladder requires"),
        (lambda t: t["ladder"].pop("flops"), "ladder.tokens_per_parameter", "conflicts with"),
        (lambda t: flops(t, budgets=[3, 2, 1]), "ladder.flops.budgets", "do not increase"),
        (lambda t: flops(t, tokens_per_parameter=[9, 99]), "ladder.flops.budgets", "only 2"),
    ],
)
def test_a_ladder_without_points_is_refused(change, path, problem):
    with pytest.raises(RecipeError, match=problem) as caught:
        check_study(broken(change), "ladder.yaml")
    assert caught.value.path == f"ladder.yaml.{path}"


def test_runs_by_flops_have_a_parabola_per_budget(ladder: Path, capfd: Said) -> None:
    """The largest budget checks the law; both approaches say how to use the FLOPs."""
    words = (*PREDICT, f"run={ladder}")
    assert main([*words, "output=json"]) == 0
    found = json.loads(capfd.readouterr().out)
    apart = [one for one in found["runs"] if one["held_out"]]
    assert len(apart) == 4
    for one in apart:
        assert 6 * one["parameters"] * one["tokens"] == pytest.approx(8e12, rel=1e-3)
    best = found["by_budgets"]
    assert len(best["budgets"]) == 6
    for one in best["budgets"]:  # parabolas only come near the law
        optimum = PLANTED.find_optimum(one["flops"])
        assert one["parameters"] == pytest.approx(optimum.parameters, rel=0.1)
    assert best["exponent"] == pytest.approx(PLANTED.parameters_exponent, abs=0.05)
    assert main(list(words)) == 0
    said = capfd.readouterr().out
    for text in ("by parabolas per budget", "held out", "E + A/N^alpha", "device-hours"):
        assert text in said


def test_a_known_law_predicts_the_large_run(ladder: Path, capfd: Said) -> None:
    page = ladder.parent / "page.html"
    assert main([*PREDICT, f"run={ladder}", "output=json", f"file={page}"]) == 0
    found = json.loads(capfd.readouterr().out)
    expected = PLANTED.predict_loss(LARGE, TOKENS)
    assert (found["parameters"], found["tokens"]) == (LARGE, TOKENS)
    assert found["loss"]["value"] == pytest.approx(expected, rel=1e-3)
    assert found["loss"]["low"] <= found["loss"]["value"] <= found["loss"]["high"]
    assert found["held_out_error"] < 1e-5
    assert [one["held_out"] for one in found["runs"]].count(True) == 4
    assert found["law"]["runs"] == 20
    assert found["beyond"]["parameters"] == pytest.approx(LARGE / 229_344)
    assert found["beyond"]["flops"] == pytest.approx(6 * LARGE * TOKENS / 4e12, rel=1e-3)
    best = found["optimum"]
    assert best["parameters"] * best["tokens"] == pytest.approx(LARGE * TOKENS)
    assert found["lr"] == pytest.approx(rate_of(LARGE), rel=5e-3)
    assert found["lr_of_recipe"] == pytest.approx(3e-4)
    assert any("same tokenizer" in note for note in found["notes"])
    assert main(["action=plan", "output=json", *PREDICT[2:]]) == 0
    assert found["plan"] == json.loads(capfd.readouterr().out)["bill"]
    assert "<h1>teuken7b on juwels, predicted by ladder</h1>" in page.read_text("utf-8")
    assert f"python run.py {' '.join(PREDICT)}<" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "path", "problem"),
    [
        ((PREDICT[0], *PREDICT[2:], "run=nowhere"), "run", "not used by action=plan"),
        (("action=plan", "study=mula_weak", *PREDICT[2:]), "study", "is not a ladder"),
        ((*PREDICT, "run=nowhere"), "study", "0 of 24 runs of ladder have a loss in"),
    ],
)
def test_impossible_predictions_are_refused(ladder, capfd, words, path, problem):
    assert main(list(words)) == 2
    said = capfd.readouterr().err
    assert f"{path}: " in said
    assert problem in said


def test_a_study_of_the_user_is_named_by_its_path(tmp_path: Path, capfd: Said) -> None:
    own = tmp_path / "my ladder.yaml"
    shutil.copy(ROOT / "studies" / "ladder.yaml", own)
    assert main(["action=plan", f"study={own}", *PREDICT[2:], f"run={tmp_path}"]) == 2
    assert command_line("-m", f"study={own}") in capfd.readouterr().err


def test_a_run_of_a_different_size_than_its_file_is_refused(ladder: Path, capfd: Said) -> None:
    run = next(ladder.iterdir())
    derived = json.loads((run / "derived.json").read_text())
    derived["parameters"]["embedding"] -= 8
    (run / "derived.json").write_text(json.dumps(derived))
    assert main([*PREDICT, f"run={ladder}"]) == 2
    assert "study.ladder.sizes" in capfd.readouterr().err
