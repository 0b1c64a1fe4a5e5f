"""Whose a recipe is: by the place where it really lies, not by the way it was named."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from command.arguments import ROOT, list_config_groups, read_point
from command.composition.compose import compose_recipe
from command.files.trusted_paths import is_trusted
from command.main import main
from command.study.sweep_points import is_submitted
from components.errors import RecipeError

OWN_TEXT = """\
defaults: [teuken7b]
name: mine
data:
  shares: {mine: 1.0}
  sources: {mine: {files: [/scratch/me/text.jsonl]}}
"""
Said = pytest.CaptureFixture[str]


def write(file: Path, text: str = OWN_TEXT) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    return file


def files_of(word: str) -> list[str]:
    recipe = compose_recipe(read_point([f"recipe={word}"]))
    return list(recipe.data.sources["mine"].files)


@pytest.mark.parametrize("route", ["name", "path", "link"])
def test_clone_recipe_is_trusted_by_any_name(route: str, clone: Path, work: Path) -> None:
    file = write(clone / "recipes" / "mine.yaml")
    (work / "link.yaml").symlink_to(file)
    word = {"name": "mine", "path": str(file), "link": "./link.yaml"}[route]
    assert files_of(word) == ["/scratch/me/text.jsonl"]


def test_private_recipe_is_listed(clone: Path, private: Path, work: Path, capfd: Said) -> None:
    write(private / "recipes" / "mine.yaml", OWN_TEXT + "description: Mine.\n")
    write(private / "recipes" / "broken.yaml", "a: [")
    assert files_of("mine") == ["/scratch/me/text.jsonl"]
    assert main(["action=show"]) == 0
    lines = {line.split()[0]: line for line in capfd.readouterr().out.splitlines() if line}
    assert lines["mine"].split() == ["mine", "juwels", "Mine."]
    assert "broken.yaml:1" in lines["broken"]
    assert "juwels" in lines["teuken7b"]


def test_moved_recipe_is_trusted(clone: Path, work: Path) -> None:
    file = write(work / "mine.yaml")
    with pytest.raises(RecipeError) as caught:
        files_of("./mine.yaml")
    assert caught.value.path == "mine.yaml:5: data.sources.mine.files[0]"
    assert caught.value.problem.endswith("the working directory, and mine.yaml was received")
    named, _, place = caught.value.remedy.partition(", or trust the file: move it to ")
    assert named.endswith("if you trust it, set data.sources.mine.files=...")
    shutil.move(file, place)
    assert files_of("mine") == ["/scratch/me/text.jsonl"]


def test_link_to_received_file_is_not_trusted(clone: Path, work: Path) -> None:
    (clone / "recipes" / "mine.yaml").symlink_to(write(work / "sent.yaml"))
    in_the_root = str(write(clone / "mine.yaml"))
    for word in ("mine", str(clone / "recipes" / "mine.yaml"), in_the_root):
        with pytest.raises(RecipeError, match=r"mine.yaml was received"):
            files_of(word)


def test_a_received_file_makes_its_whole_chain_received(clone: Path, work: Path) -> None:
    write(clone / "recipes" / "mine.yaml")
    write(work / "sent.yaml", "defaults: [mine]\nname: sent\n")
    with pytest.raises(RecipeError, match=r"and sent.yaml was received"):
        files_of("./sent.yaml")
    write(clone / "recipes" / "over.yaml", "defaults: [../../work/sent]\nname: over\n")
    with pytest.raises(RecipeError, match=r"and sent.yaml was received"):
        files_of("over")


def test_bundle_is_trusted_only_in_the_clone(clone: Path, work: Path, capfd: Said) -> None:
    write(clone / "recipes" / "mine.yaml")
    assert main(["recipe=mine", "action=pack", "file=sent.recipe.yaml"]) == 0
    file = work / "sent.recipe.yaml"
    text, count = re.subn(r"elsewhere/\w+/", "/scratch/me/", file.read_text())
    assert count
    file.write_text(text)
    with pytest.raises(RecipeError, match=r"and sent.recipe.yaml was received"):
        files_of("./sent.recipe.yaml")
    (work / "sent.recipe.yaml").rename(clone / "recipes" / "sent.recipe.yaml")
    assert files_of(f"{clone}/recipes/sent.recipe.yaml") == ["/scratch/me/text.jsonl"]


def test_own_lock_of_any_recipe(clone: Path, work: Path, tmp_path: Path, capfd: Said) -> None:
    elsewhere = write(tmp_path / "elsewhere" / "r.yaml", "defaults: [bloom560m]\nname: r\n")
    lock = work / "r.lock.yaml"
    assert main([f"recipe={elsewhere}", "action=pack", f"file={lock}"]) == 0
    assert main(["action=verify", f"file={lock}"]) == 2
    assert "leads out of the working directory" in capfd.readouterr().err
    own = lock.rename(clone / "recipes" / "r.lock.yaml")
    assert main(["action=verify", f"file={own}"]) == 0


def test_study_values_are_not_trusted(clone: Path, work: Path) -> None:
    write(clone / "recipes" / "mine.yaml")
    own = read_point(["recipe=mine"])
    with pytest.raises(RecipeError, match=r"data.folder: '/x' leads out"):
        compose_recipe(replace(own, file_values={"data.folder": "/x"}))
    recipe = compose_recipe(replace(own, file_values={"optimizer.lr": 1e-4}))
    assert recipe.data.sources["mine"].files == ("/scratch/me/text.jsonl",)


def test_relative_config_folder_is_ignored(monkeypatch: pytest.MonkeyPatch, work: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", ".")
    monkeypatch.setenv("HOME", str(work / "home"))
    file = write(work / "kochbuch" / "recipes" / "mine.yaml")
    assert not is_trusted(file)
    assert "mine" not in list_config_groups()["recipe"]


def test_second_recipe_of_a_name_is_refused(private: Path, work: Path) -> None:
    file = write(private / "recipes" / "teuken7b.yaml")
    with pytest.raises(RecipeError, match="recipe: two files define 'teuken7b'") as caught:
        compose_recipe(read_point(["recipe=teuken7b"]))
    compose_recipe(read_point(["recipe=bloom560m"]))
    assert caught.value.remedy == f"rename yours: {file}"
    write(private / "conf" / "model" / "bloom1b1.yaml", "defaults: [bloom560m]\n")
    with pytest.raises(RecipeError, match="model: two files define 'bloom1b1'"):
        compose_recipe(read_point(["recipe=bloom560m", "model=bloom1b1"]))
    file.rename(file.with_stem("teuken7b_2"))
    compose_recipe(read_point(["recipe=teuken7b"]))
    assert files_of("teuken7b_2") == ["/scratch/me/text.jsonl"]


PROFILE = "defaults: [juwels]\nname: mine\n"


def test_private_cluster_is_submitted_to(private: Path, work: Path, capfd: Said) -> None:
    write(private / "conf" / "cluster" / "mine.yaml", PROFILE)
    recipe = compose_recipe(read_point(["recipe=teuken7b", "cluster=mine"]))
    assert (recipe.cluster.name, recipe.cluster.scheduler) == ("mine", "slurm")
    assert is_submitted([["recipe=teuken7b", "cluster=mine"]])
    assert not is_submitted([["recipe=teuken7b", "cluster=local"]])
    write(private / "conf" / "cluster" / "shell.yaml", "defaults: [local]\nname: shell\n")
    assert not is_submitted([["recipe=teuken7b", "cluster=shell"]])


def test_private_options_are_chosen_by_recipes_and_by_name(private: Path, work: Path) -> None:
    conf = private / "conf"
    write(conf / "model" / "small.yaml", "defaults: [bloom560m]\nnum_layers: 7\n")
    write(conf / "model" / "smaller.yaml", "defaults: [small]\ndropout: 0.3\n")
    write(conf / "data" / "mine.yaml", "defaults: [english]\nshares: {english: 1.0}\n")
    full = ["scale=full", "cluster=jean_zay"]
    named = compose_recipe(read_point(["recipe=bloom560m", "model=smaller", *full]))
    assert (named.model["num_layers"], named.model["dropout"]) == (7, 0.3)
    write(work / "r.yaml", "defaults: [bloom560m, override /model: small]\nname: r\n")
    chosen = compose_recipe(read_point(["recipe=./r.yaml", *full, "data=mine"]))
    assert chosen.model["num_layers"] == 7
    assert set(chosen.data.shares) == {"english"}


def test_a_private_family_may_use_the_parts_of_this_repository(
    private: Path, work: Path
) -> None:
    text = (ROOT / "conf" / "model" / "bloom" / "bloom176b.yaml").read_text("utf-8")
    write(private / "conf" / "model" / "family.yaml", text)
    recipe = compose_recipe(read_point(["recipe=bloom176b", "model=family"]))
    assert recipe.model == compose_recipe(read_point(["recipe=bloom176b"])).model


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("description: ${oc.env:HOME}", "mine.yaml:1: description: '${oc.env:HOME}' is ref"),
        ("_target_: os.system", "mine.yaml:1: _target_: 'os.system' is not an allowed"),
        ("defaults: [nope]", "mine.yaml:1: defaults: unknown model: 'nope'"),
        ("defaults: [parts/nope@_here_]", "unknown model: 'parts/nope@_here_'"),
        ("defaults: bloom560m", "defaults: 'bloom560m' is not a list"),
        ("defaults: [mine]", "model 'mine' starts from itself: mine -> mine"),
    ],
)
def test_a_broken_private_option_fails_only_if_named(
    text: str, message: str, private: Path, work: Path, capfd: Said
) -> None:
    write(private / "conf" / "model" / "mine.yaml", text)
    with pytest.raises(RecipeError) as caught:
        compose_recipe(read_point(["recipe=bloom560m", "model=mine"]))
    assert message in str(caught.value)
    compose_recipe(read_point(["recipe=bloom560m", "model=bloom1b1"]))


def test_private_link_to_other_file_is_refused(private: Path, work: Path) -> None:
    link = private / "conf" / "cluster" / "mine.yaml"
    link.parent.mkdir(parents=True)
    link.symlink_to(write(work / "sent.yaml", PROFILE))
    with pytest.raises(RecipeError, match=r"cluster: .*outside your trusted folders"):
        compose_recipe(read_point(["recipe=teuken7b", "cluster=mine"]))


def test_model_in_subfolder_is_found_by_name(clone: Path, private: Path) -> None:
    folder = clone / "conf" / "model" / "bloom"
    write(folder / "bloom3b_wide.yaml", "defaults: [bloom3b]\nnum_layers: 7\n")
    recipe = compose_recipe(read_point(["recipe=bloom3b", "scale=full", "model=bloom3b_wide"]))
    assert recipe.model["num_layers"] == 7
