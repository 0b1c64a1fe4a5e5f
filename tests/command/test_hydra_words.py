"""Hydra's flags work as in Hydra; what is not supported gets one message."""

import json
from pathlib import Path

import pytest

from command.hydra_words import PAGE, REASON, SHORT, completion_query, plain_words
from command.main import main

Said = pytest.CaptureFixture[str]

RECIPE = ("recipe=teuken7b", "action=show")


@pytest.mark.parametrize(
    "words",
    [
        *(["--hydra-help"], ["--cfg", "hydra"], ["--cfg=all"], ["--package", "model"], ["-i"]),
        *(["--config-name=mula1b"], ["-cn", "mula1b"], ["--experimental-rerun", "job.pickle"]),
        *(["hydra.run.dir=x"], ["hydra/launcher=submitit_slurm"], ["++hydra.mode=MULTIRUN"]),
        *(["~hydra.run.dir"], ["~budget.seed=5"], ["precision@model=fp8"]),
        *(["+precision@model=fp8"], ["override /precision=fp8"]),
    ],
    ids=" ".join,
)
def test_unsupported_word_is_refused(words: list[str], folder: Path, capfd: Said) -> None:
    assert main([*RECIPE, *words]) == 2
    name = words[0].split("=")[0].split(" ")[0]
    assert capfd.readouterr().err == f"{SHORT.get(name, name)}: {REASON}\n  {PAGE}\n"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["--cfg", "job"], ["action=show", "full=true"]),
        (["-c=job"], ["action=show", "full=true"]),
        (["--cfg", "job", "--resolve"], ["action=show", "full=true"]),
        (["--resolve", "action=show"], ["full=true", "action=show"]),
        (["--multirun", "optimizer.lr=1,2"], ["-m", "optimizer.lr=1,2"]),
        (["-r", "description=x"], ["description=x"]),
        (["-h"], ["--help"]),
        (["+description=x", "++name=y"], ["description=x", "name=y"]),
    ],
)
def test_a_flag_is_replaced_by_words_of_this_command(words: list[str], same: list[str]) -> None:
    assert plain_words(["recipe=teuken7b", *words]) == ["recipe=teuken7b", *same]


@pytest.mark.parametrize(
    ("words", "query"),
    [
        (["--shell-completion", "install=bash"], "install=bash"),
        (["-sc", "query=bash"], "query=bash"),
        (["--shell-completion=uninstall=bash"], "uninstall=bash"),
        (["--help"], None),
    ],
)
def test_a_shell_queries_completions(words: list[str], query: str | None) -> None:
    assert completion_query(words) == query


def test_an_unknown_flag_is_refused(capfd: Said) -> None:
    for words in (["--walnut"], ["--cfg", "job", "action=plan"]):
        assert main(["recipe=teuken7b", *words]) == 2
        assert capfd.readouterr().err


@pytest.mark.parametrize("sign", ["+", "++"])
def test_a_plus_before_a_key_is_accepted(sign: str, capfd: Said) -> None:
    words = ["recipe=teuken7b", "action=show", "output=json"]
    assert main([*words, f"{sign}budget.seed=7"]) == 0
    assert json.loads(capfd.readouterr().out)["recipe"]["budget"]["seed"] == 7
    new = [f"{sign}data.sources={{x: {{files: [a.txt]}}}}", f"{sign}data.shares={{x: 1.0}}"]
    assert main([*words, *new]) == 0
    assert set(json.loads(capfd.readouterr().out)["recipe"]["data"]["shares"]) >= {"x"}
    assert main([*words, f"{sign}budget.sed=7"]) == 2
    assert "budget.sed: unknown key\n  did you mean seed" in capfd.readouterr().err


@pytest.mark.parametrize("word", ["hydra.searchpath=[x]", "~optimizer.lr"])
def test_compared_recipe_has_no_hydra_words(word: str, capfd: Said) -> None:
    assert main(["action=diff", "a=teuken7b", f"b=teuken7b {word}"]) == 2
    assert capfd.readouterr().err


@pytest.mark.parametrize("word", ["data=[a~b.txt]", "data=c++/a.txt", "optimizer.lr=1e+3"])
def test_signs_inside_of_a_value_are_part_of_it(word: str) -> None:
    assert plain_words([word]) == [word]
