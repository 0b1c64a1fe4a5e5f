"""Mixture studies: points around a recipe's shares, and what planted laws of them propose."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from command.arguments import ROOT
from command.compose import compose_recipe
from command.main import main
from command.study.request import StudyRequest, ask
from command.study.schema import MixtureStudy
from command.study.shares import shares_of
from command.study.study_file import check_study
from components.errors import RecipeError
from components.scaling.mixture_law import MixtureLaw

NAMES = ("starcoder", "slimpajama", "nordic_en")
PLANTED = {
    "starcoder": MixtureLaw(floor=1.2, slopes=np.array([-1.5, 0.6, 0.4])),
    "slimpajama": MixtureLaw(floor=2.0, slopes=np.array([0.6, -1.6, 0.5])),
    "nordic_en": MixtureLaw(floor=1.6, slopes=np.array([0.5, 0.1, -1.8])),
}
PREDICT = ("action=predict", "study=mixture", "recipe=viking_7b", "cluster=lumi")
VARIED = 0.330497 + 0.330264 + 0.083674  # of the recipe's tokens
# Of 1,000 samples of 64 tokens that were read 0.5 times.
READ = {"promised_share": 0.3, "share": 0.3, "samples": 1_000, "epochs": 0.5}


def shipped() -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((ROOT / "studies" / "mixture.yaml").read_text())
    return tree


def study_of(asked: StudyRequest) -> MixtureStudy:
    assert isinstance(asked.study, MixtureStudy)
    return asked.study


@pytest.fixture(scope="module")
def asked() -> StudyRequest:
    return ask(["study=mixture", "action=report", "run=runs"])


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: StudyRequest) -> Path:
    """A folder of finished runs whose losses are those of planted laws."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    recipe = compose_recipe(asked.arguments_of(study_of(asked).points[0])).model_dump_json()
    for point in study_of(asked).points:
        folder = tmp_path / "runs" / asked.folder_of(point).name
        folder.mkdir(parents=True)
        shares = np.array([shares_of(point)[name] for name in NAMES])
        losses = {name: float(law.loss(shares)) for name, law in PLANTED.items()}
        mean = float(np.mean([*losses.values()]))
        held_out = {"by_source": losses, "final": mean, "final_unweighted": mean}
        results = {"status": "finished", "tokens": 196_608, "held_out": held_out}
        results["mixture"] = dict.fromkeys(NAMES, READ)
        (folder / "results.json").write_text(json.dumps(results))
        (folder / "recipe.json").write_text(recipe)
        (folder / "data.json").write_text(json.dumps({"folder": "prepared", "key": "a"}))
    return tmp_path / "runs"


def test_points_are_the_recipes_own_shares_and_others_within_bounds(
    asked: StudyRequest,
) -> None:
    """Viking's weights of the three, 0.330497, 0.330264 and 0.083674, over their sum."""
    study = study_of(asked)
    mixtures = [shares_of(point) for point in study.points]
    own = {"starcoder": 0.4440, "slimpajama": 0.4436, "nordic_en": 0.1124}
    assert mixtures[0] == own
    assert len({tuple(one.values()) for one in mixtures}) == study.mixture.runs == 13
    for shares in mixtures:
        assert sum(shares.values()) == pytest.approx(1.0, abs=1e-9)
        assert all(0.02 <= share <= 0.9 for share in shares.values())
    assert [study.is_held_out(point) for point in study.points] == [*[False] * 12, True]


def test_points_are_a_function_of_the_file_and_its_seed(asked: StudyRequest) -> None:
    again = check_study(shipped(), "mixture.yaml")
    assert isinstance(again, MixtureStudy)
    assert again.points == study_of(asked).points
    tree = shipped()
    tree["mixture"]["seed"] = 2
    other = check_study(tree, "mixture.yaml")
    assert isinstance(other, MixtureStudy)
    assert other.points[0] == again.points[0]
    assert other.points[1:] != again.points[1:]


def test_drawn_shares_scatter_around_the_recipes_own_to_a_power() -> None:
    """The mean of a Dirichlet distribution is its centre: 0.40, 0.40 and 0.20 by the roots."""
    tree = shipped()
    tree["mixture"] |= {"runs": 600, "bounds": {}}
    study = check_study(tree, "mixture.yaml")
    assert isinstance(study, MixtureStudy)
    drawn = np.array([[*shares_of(point).values()] for point in study.points[1:]])
    roots = np.sqrt([0.4440, 0.4436, 0.1124])
    assert drawn.mean(axis=0) == pytest.approx(roots / roots.sum(), abs=0.04)


def test_a_points_recipe_reads_its_shares_and_no_carriers(asked: StudyRequest) -> None:
    point = study_of(asked).points[1]
    recipe = compose_recipe(asked.arguments_of(point))
    assert dict(recipe.data.shares) == shares_of(point)
    texts = {name: source.embedded for name, source in recipe.data.sources.items()}
    assert texts == {
        "starcoder": "python/source", "slimpajama": "python/docs", "nordic_en": "eu24"
    }  # fmt: skip


def test_sources_that_do_not_vary_keep_their_shares() -> None:
    """The 24 languages of Teuken-7B: three vary, the others stay, and the sum is theirs."""
    tree = shipped() | {"recipe": "teuken7b"}
    tree["set"] = {"scale.shrink.carriers": "{}"}
    tree["columns"] = {}
    tree["mixture"] |= {"sources": ["de", "en", "fr"], "bounds": {}}
    study = check_study(tree, "mixture.yaml")
    assert isinstance(study, MixtureStudy)
    own, *others = [shares_of(point) for point in study.points]
    assert own["de"] == pytest.approx(0.1092)
    for shares in others:
        assert {name for name in own if shares[name] != own[name]} <= {"de", "en", "fr"}
        assert sum(shares.values()) == pytest.approx(1.0, abs=1e-9)


WITHOUT_NORDIC = {
    "data.shares": "{starcoder: 0.5, slimpajama: 0.5, nordic_en: 0.0}",
    "data.sources.nordic_en.embedded": "eu24",
}


def of_rule(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda tree: tree["mixture"].update(changes)


@pytest.mark.parametrize(
    ("change", "path", "problem"),
    [
        (lambda t: t.update(mixture=[1]), "mixture", "is no mapping"),
        (of_rule(sources=["code"]), "mixture.sources", "'code' is none of starcoder"),
        (of_rule(bounds={"web": [0, 1]}), "mixture.bounds", "'web' is none of"),
        (of_rule(weights={"web": 1}), "mixture.weights", "'web' is none of"),
        (
            of_rule(sources=["starcoder", "slimpajama"], bounds={}),
            "mixture.sources",
            "only starcoder and slimpajama vary",
        ),
        (of_rule(runs=6), "mixture.runs", "6 runs of 3 sources tell no law"),
        (of_rule(weights={"starcoder": 0}), "mixture.weights", "all are 0"),
        (of_rule(strength=[5, 1]), "mixture.strength", "5 is above 1"),
        (
            of_rule(bounds={"nordic_en": [0.2, 0.9]}),
            "mixture.bounds.nordic_en",
            "own share is 0.1124, and always tried",
        ),
        (
            of_rule(bounds={"nordic_en": [0.1123, 0.1125], "starcoder": [0.4439, 0.4441]}),
            "mixture.bounds",
            "of 13,000 mixtures drawn 0 are within the bounds",
        ),
        (
            lambda t: t["set"].pop("scale.shrink.carriers"),
            "mixture",
            "85% of the miniature are texts of no source of viking_7b",
        ),
        (
            lambda t: t.update(recipe="olmo3_7b", set={}),
            "mixture",
            "the shares of olmo3_7b change with midtrain, long",
        ),
        (
            lambda t: t.update(set={"data.mixture": "natural", "data.shares": "{}"}),
            "mixture",
            "the shares of viking_7b follow from the sizes",
        ),
        (
            lambda t: t.update(set=WITHOUT_NORDIC) or t["mixture"].update(bounds={}),
            "mixture.sources",
            "the share of nordic_en is 0",
        ),
    ],
)  # fmt: skip
def test_a_mixture_that_no_points_follow_from_is_refused(
    change: Callable[[dict[str, Any]], object], path: str, problem: str
) -> None:
    tree = shipped()
    change(tree)
    with pytest.raises(RecipeError, match=problem) as caught:
        check_study(tree, "mixture.yaml")
    assert caught.value.path == f"mixture.yaml.{path}"


@pytest.mark.parametrize("word", ["data.shares={starcoder:1.0}", "data.shares.starcoder=0.5"])
def test_what_the_study_varies_nobody_sets_beside_it(word: str) -> None:
    with pytest.raises(RecipeError, match=r"mixture.yaml varies it"):
        ask(["study=mixture", "action=report", word])


def test_planted_laws_propose_their_minimum(
    finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = finished.parent / "page.html"
    words = [*PREDICT, f"run={finished}", "output=json", f"file={page}"]
    assert main(words) == 0
    found = json.loads(capfd.readouterr().out)
    grid = np.stack([one.ravel() for one in np.meshgrid(*2 * [np.linspace(0.02, 0.9, 177)])], 1)
    grid = np.column_stack([grid, 1 - grid.sum(axis=1)])
    grid = grid[(grid[:, 2] >= 0.02 - 1e-9) & (grid[:, 2] <= 0.9)]
    losses = np.mean([law.loss(grid) for law in PLANTED.values()], axis=0)
    best = grid[np.argmin(losses)]
    assert [one["proposed"]["value"] for one in found["shares"]] == pytest.approx(
        best, abs=5e-3
    )
    assert found["proposed"]["value"] == pytest.approx(losses.min(), abs=1e-4)
    own = np.array([0.4440, 0.4436, 0.1124])
    at_own = np.mean([law.loss(own) for law in PLANTED.values()])
    assert found["own"]["value"] == pytest.approx(at_own, abs=1e-3)
    assert found["gain"]["low"] <= found["gain"]["value"] <= found["gain"]["high"]
    assert [one["held_out"] for one in found["runs"]] == [*[False] * 12, True]
    assert max(abs(one["error"]) for one in found["runs"]) < 1e-4
    # Sources that the study does not have keep their shares, the others share theirs.
    shares = found["data"]["shares"]
    assert sum(shares.values()) == pytest.approx(1.0)
    assert (shares["sv"], shares["isl"]) == (0.080526, 0.004054)
    assert [shares[name] for name in NAMES] == pytest.approx(best * VARIED, abs=5e-3)
    assert "<h1>viking_7b: a mixture, proposed by mixture</h1>" in page.read_text("utf-8")


def test_the_terminal_has_the_words_for_the_recipe_and_what_limits_them(
    finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two trillion tokens of a source of 128,000."""
    text = "data.sources.nordic_en.embedded=eu24"
    assert main([*PREDICT, text, f"run={finished}"]) == 0
    said = capfd.readouterr().out
    words = yaml.safe_load(said[said.index("data:\n") :])
    assert sum(words["data"]["shares"].values()) == pytest.approx(1.0)
    times = words["data"]["shares"]["nordic_en"] * 2_000_000_000_000 / 128_000
    (found,) = re.findall(r"viking_7b would read nordic_en ([\d,.]+)\stimes", said)
    assert float(found.replace(",", "")) == pytest.approx(times, rel=1e-3)
    for part in (
        "held out",
        "gain, nats",
        "the gain is beyond the fit's interval",
        "would read starcoder, slimpajama is not known",
        "losses are a token of 512 pieces",
    ):
        assert part in said


def test_a_gain_that_the_fit_does_not_show_is_said_to_be_none(
    finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Losses that no share moves, but for noise: whatever is proposed is none the better."""
    generator = np.random.default_rng(4)
    for folder in sorted(finished.iterdir()):
        results = json.loads((folder / "results.json").read_text())
        losses = {name: 3.0 * float(np.exp(0.01 * generator.normal())) for name in NAMES}
        results["held_out"]["by_source"] = losses
        (folder / "results.json").write_text(json.dumps(results))
    assert main([*PREDICT, f"run={finished}", "output=json"]) == 0
    notes = json.loads(capfd.readouterr().out)["notes"]
    assert notes[0].startswith("no gain is shown")


def change(finished: Path, file: str, edit: Callable[[dict[str, Any]], object]) -> None:
    path = sorted(finished.iterdir())[3] / file
    tree = json.loads(path.read_text())
    edit(tree)
    path.write_text(json.dumps(tree))


@pytest.mark.parametrize(
    ("file", "edit", "problem"),
    [
        ("results.json", lambda t: t.update(status="stopped"), "12 of 13 runs of mixture have"),
        ("data.json", lambda t: t.update(key="b"), "read other data than"),
        (
            "results.json",
            lambda t: t["held_out"]["by_source"].pop("nordic_en"),
            "has no held-out loss of nordic_en",
        ),
    ],
)
def test_runs_that_do_not_compare_are_refused(
    finished: Path,
    capfd: pytest.CaptureFixture[str],
    file: str,
    edit: Callable[[dict[str, Any]], object],
    problem: str,
) -> None:
    change(finished, file, edit)
    assert main([*PREDICT, f"run={finished}"]) == 2
    assert problem in capfd.readouterr().err


def test_a_recipe_without_the_studys_sources_is_refused(
    finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["action=predict", "study=mixture", "recipe=teuken7b", "cluster=juwels"]
    assert main([*words, f"run={finished}"]) == 2
    assert "teuken7b gives starcoder, slimpajama, nordic_en no share" in capfd.readouterr().err


@pytest.mark.long
def test_tiny_runs_are_trained_and_propose_a_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = shipped()
    tree["set"] |= {"budget.total_tokens": 4_096, "schedule.warmup_tokens": 512}
    tree["mixture"]["runs"] = 7
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(tree | {"name": "tiny"}))
    study = (f"study={file}", f"run={tmp_path / 'runs'}")
    assert main(["-m", *study, "output=json"]) == 0
    points = json.loads(capfd.readouterr().out)["points"]
    assert len(points) == 7
    assert all(one["measured"] is not None for one in points)
    assert main([PREDICT[0], *study, *PREDICT[2:], "output=json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert sum(found["data"]["shares"].values()) == pytest.approx(1.0)
    assert not found["with_floor"]
    by_mean = {json.dumps(one["shares"]): one["loss"] for one in found["runs"]}
    assert sorted(by_mean.values()) == pytest.approx(sorted(one["measured"] for one in points))
