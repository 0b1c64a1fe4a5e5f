"""Every word of Hydra's works, or is answered by one message with its equivalent."""

import json
import os
from pathlib import Path

import pytest

from command.arguments import ROOT
from command.hydra_words import PLACEHOLDER, ROWS, SHORT, HydraWord, explained, plain_words
from command.main import main

PAGE = ROOT / "docs" / "hydra.md"
BEGIN, END = "command/hydra_words.py -->\n", "<!-- end of words -->"
RECIPE = ("recipe=teuken7b", "action=show")
SAMPLES = {
    "KEY": "optimizer.eps",
    "VALUE": "1e-6",
    "GROUP": "precision",
    "OPTION": "bf16",
    "ASKED": "install=bash",
    "REST": "timeout=3",
    "LIBRARY": "job",
    "PLACES": "[pkg://a]",
    "NAME": "mula1b",
    "FOLDER": "mine",
    "FILE": "job.pickle",
    "PACKAGE": "model",
}


def sample(row: HydraWord) -> list[str]:
    """Write the word as a user would: a flag and its value are two arguments."""
    word = PLACEHOLDER.sub(lambda found: SAMPLES.get(found[0], "some"), row.word)
    return word.split(" ", 1) if word.startswith("--") else [word]


def table() -> str:
    lines = ["", "| Hydra | here | why |", "|---|---|---|"]
    rows = (f"| {words} | {here} | {why} |" for words, here, why in explained())
    return "\n".join([*lines, *rows, "", ""])


def test_the_page_has_the_table_of_the_code() -> None:
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    written, _, after = rest.partition(END)
    if os.environ.get("UPDATE_GOLDEN") == "1":
        PAGE.write_text(f"{before}{BEGIN}{table()}{END}{after}", "utf-8")
    else:
        assert written == table()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.word)
def test_a_word_of_hydra_works_or_is_answered(
    row: HydraWord,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    beside = [] if row.word == "--help" else RECIPE
    status = main([*beside, *sample(row)])
    said = capfd.readouterr()
    assert status == (2 if row.why else 0), said.err
    assert bool(said.out) is not bool(row.why)
    if row.why:
        first, way = said.err.splitlines()
        assert first.startswith(sample(row)[0].partition("=")[0].removeprefix("+"))
        assert way.startswith("  ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("short", SHORT)
def test_a_short_flag_is_the_long_one(short: str, capfd: pytest.CaptureFixture[str]) -> None:
    row = next(row for row in ROWS if row.word.split()[0] == SHORT[short])
    own = sample(row)[1:]
    said = []
    for flag in (short, SHORT[short]):
        words = [flag, *own] if row.word == "--help" else [*RECIPE, flag, *own]
        said.append((main(words), capfd.readouterr()))
    assert said[0] == said[1]


@pytest.mark.parametrize("sign", ["+", "++", "~"])
def test_a_sign_does_not_hide_a_setting_of_hydra(
    sign: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*RECIPE, f"{sign}hydra.run.dir=x"]) == 2
    assert capfd.readouterr().err == ("hydra.run.dir: it has another name\n  write run=x\n")


def test_the_way_out_has_the_words_that_were_given(capfd: pytest.CaptureFixture[str]) -> None:
    for words, way in (
        (["-cn", "teuken7b"], "write recipe=teuken7b"),
        (["--config-name=teuken7b"], "write recipe=teuken7b"),
        (["-p", "optimizer.lr"], ".recipe.optimizer.lr, for jq"),
        (["hydra.job.env_set.A=b"], "cluster.site.environment.A={value: b, reason: a try}"),
        (["precision@model=fp8"], "write precision=fp8"),
        (["override /precision=fp8"], "write precision=fp8"),
    ):
        assert main([*RECIPE, *words]) == 2
        assert way in capfd.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("recipe=teuken7b", "action=show", "output=json"),
        ("recipe=mula1b", "precision=fp8", "tracking=none", "action=show"),
        ("recipe=./mine/x.yaml", "action=show"),
        ("-m", "recipe=teuken7b", "optimizer.lr=1e-4,3e-4", "action=show"),
        ("recipe=mula1b", "action=pack", "file=again.recipe.yaml"),
        ("recipe=again.recipe.yaml", "action=show"),
        (
            *("recipe=teuken7b", "cluster=juwels", "action=render", "run=mine"),
            *("site.account=me", "cluster.site.environment.A={value: b, reason: a try}"),
        ),
    ],
)
def test_the_ways_out_are_ways(
    words: tuple[str, ...],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path_factory.getbasetemp() / "ways"
    (home / "mine").mkdir(parents=True, exist_ok=True)
    (home / "mine" / "x.yaml").write_text("defaults: [mula1b]\nname: x\nwhy: a try\n")
    monkeypatch.chdir(home)
    if words[0] == "recipe=again.recipe.yaml":
        assert main(["recipe=mula1b", "action=pack", "file=again.recipe.yaml"]) in {0, 2}
        capfd.readouterr()
    assert main(words) == 0, capfd.readouterr().err


def test_cfg_job_is_show_in_full(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe=teuken7b", "action=show", "full=true"]) == 0
    shown = capfd.readouterr().out
    assert main(["recipe=teuken7b", "--cfg", "job", "--resolve"]) == 0
    assert capfd.readouterr().out == shown


@pytest.mark.parametrize("sign", ["+", "++"])
def test_a_key_with_a_plus_is_the_key(sign: str, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["recipe=teuken7b", "action=show", "output=json"]
    assert main([*words, f"{sign}budget.seed=7"]) == 0
    assert json.loads(capfd.readouterr().out)["recipe"]["budget"]["seed"] == 7
    new = [f"{sign}data.sources={{x: {{files: [a.txt]}}}}", f"{sign}data.shares={{x: 1.0}}"]
    assert main([*words, *new]) == 0
    assert set(json.loads(capfd.readouterr().out)["recipe"]["data"]["shares"]) >= {"x"}
    assert main([*words, f"{sign}budget.sed=7"]) == 2
    assert "budget.sed: unknown key\n  did you mean seed" in capfd.readouterr().err
    assert main(["action=diff", "a=teuken7b", f"b=teuken7b {sign}optimizer.lr=1e-3"]) == 2
    assert capfd.readouterr().err == (
        f"{sign}optimizer.lr: only key=value stands here\n  write optimizer.lr=1e-3\n"
    )


def test_nothing_is_silently_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    assert plain_words(["--resolve", "recipe=teuken7b"]) == [
        *("action=show", "full=true", "recipe=teuken7b")
    ]
    for words in (["--cfg"], ["--cfg", "job", "action=plan"], ["--walnut"], ["--cfg=walnut"]):
        assert main(["recipe=teuken7b", *words]) == 2
        assert capfd.readouterr().err


@pytest.mark.parametrize("word", ["~optimizer.eps", "~tracking", "~budget.total_tokens=5"])
def test_who_removes_a_key_is_told_to_set_it(
    word: str, capfd: pytest.CaptureFixture[str]
) -> None:
    key = word.strip("~").partition("=")[0]
    assert main([*RECIPE, word]) == 2
    message = capfd.readouterr().err
    assert message.startswith(f"~{key}: keys are not removed\n  set {key} to the value that")


def test_a_file_has_no_words_of_hydra(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["action=diff", "a=teuken7b", "b=teuken7b hydra.searchpath=[x]"]) == 2
    assert "Hydra's own search path is fixed" in capfd.readouterr().err


def test_versions_are_told_without_torch(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].startswith("kochbuch 0.")
    assert any(line.startswith("hydra-core 1.3") for line in lines)
