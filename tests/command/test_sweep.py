"""A sweep over a batch cluster: names of points, their folder, what is refused and why."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from command.arguments import ROOT
from command.main import main
from command.study.sweep_points import LONGEST, label_points, name_of, split_sweep
from components.errors import RecipeError
from tests.life.conftest import TINY

Said = pytest.CaptureFixture[str]

HERE = (
    *("cluster=juwels", "scale=mini", "cluster.device=cpu", "cluster.hardware=none"),
    *("cluster.nodes=1", "cluster.devices_per_node=1", "cluster.hours=0.5"),
    "site.account=kitchen",
)
AURORA = ("cluster=aurora", *(word for word in HERE if word != "cluster=juwels"))


def named(*words: str) -> list[str]:
    return label_points(split_sweep(["-m", *words])[1])


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs of Slurm and PBS that count what they are given; nothing of it waits or runs."""
    programs = tmp_path / "programs"
    programs.mkdir()
    notes = shlex.quote(str(programs / "submitted"))
    texts = {
        "sbatch": f'echo "$*" >> {notes}; wc -l < {notes}',
        "squeue": ":",
        "qsub": f'echo "$*" >> {notes}; wc -l < {notes}',
        "qselect": ":",
    }
    for name, text in texts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return programs / "submitted"


def sweep(tmp_path: Path, *words: str, cluster: Sequence[str] = HERE) -> int:
    runs = f"site.runs={tmp_path / 'runs'}"
    keys = {word.partition("=")[0] for word in words}
    kept = [word for word in TINY if word.partition("=")[0] not in keys]
    return main(["-m", *kept, *cluster, runs, *words])


def submitted(queue: Path) -> list[str]:
    """What each submission waits for; nothing if it may begin at once."""
    lines = queue.read_text().splitlines() if queue.exists() else []
    words = [word for line in lines for word in line.split()[:-1] if word != "--parsable"]
    assert len(lines) >= len(words)
    return [next((word for word in line.split() if "dependency" in word), "") for line in lines]


def test_a_point_label_is_a_folder_name_of_its_differences() -> None:
    assert named("recipe=teuken7b", "optimizer.lr=1e-4,3e-4", "budget.seed=1,2") == [
        "optimizer.lr=0.0001,budget.seed=1",
        "optimizer.lr=0.0001,budget.seed=2",
        "optimizer.lr=0.0003,budget.seed=1",
        "optimizer.lr=0.0003,budget.seed=2",
    ]
    assert named("recipe=teuken7b,mula1b", "at_most=2") == ["recipe=teuken7b", "recipe=mula1b"]
    assert named("recipe=teuken7b") == ["only"]
    assert named("data.folder=/a/b,'c d'") == ["data.folder=_a_b", "data.folder=_c_d_"]
    first, second = named("data.folder=/a,_a")  # one name, were it not for what is behind it
    assert first != second
    assert {one.rpartition("-")[0] for one in (first, second)} == {"data.folder=_a"}
    words = [f"budget.seed={number}{'0' * 300}{number}" for number in (1, 2)]
    found = label_points([[word] for word in words])
    assert len(set(found)) == 2
    assert all(len(label) == LONGEST + len("-12345678") for label in found)
    assert label_points([[word] for word in words]) == found


def test_a_sweep_is_named_after_its_recipe_and_its_points() -> None:
    words = ["-m", "recipe=teuken7b", "budget.seed=1,2"]
    name = name_of(split_sweep(words)[1])
    assert name.startswith("teuken7b-sweep-")
    assert name_of(split_sweep([*words, "action=train", "again=true"])[1]) == name
    assert name_of(split_sweep([*words[:2], "budget.seed=1,3"])[1]) != name
    several = name_of(split_sweep(["-m", "recipe=teuken7b,mula1b"])[1])
    assert several.startswith("sweep-")


@pytest.mark.long
def test_sweep_folder_is_found_again(queue: Path, tmp_path: Path, capfd: Said) -> None:
    points = ("optimizer.lr=1e-4,3e-4",)
    assert sweep(tmp_path, *points) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert names == {"optimizer.lr=0.0001", "optimizer.lr=0.0003"}
    capfd.readouterr()
    assert sweep(tmp_path, *points, "at_most=1") == 0
    assert capfd.readouterr().err.count("not submitted: ") == 2
    assert sweep(tmp_path, *points, "again=true", "at_most=1", "action=submit") == 0
    assert submitted(queue) == ["", "", "", "--dependency=afterany:3"]
    assert list((tmp_path / "runs").iterdir()) == [folder]


def test_sweep_respects_queue_limit(queue: Path, tmp_path: Path, capfd: Said) -> None:
    words = ("budget.seed=1,2,3", "cluster.jobs=1", "site.queue=debug")
    assert sweep(tmp_path, *words, cluster=AURORA) == 0
    assert len(submitted(queue)) == 1
    said = capfd.readouterr().err
    text = "not submitted: debug accepts 1 runs per user; repeat the command after"
    assert [f"[budget.seed={seed}] {text}" in said for seed in (1, 2, 3)] == [False, True, True]
    assert sweep(tmp_path, *words, cluster=AURORA) == 0  # the first has ended
    assert len(submitted(queue)) == 2
    assert sweep(tmp_path, "budget.seed=1,2,3,4,5,6", "cluster.jobs=1", cluster=AURORA) == 0
    assert len(submitted(queue)) == 2 + 5  # capacity takes five


def test_runs_wait_for_earlier_ones(queue: Path, tmp_path: Path, capfd: Said) -> None:
    words = ("at_most=2", "output=json")
    assert sweep(tmp_path, "budget.seed=1,2,3,4,5", *words) == 0
    after = "--dependency=afterany:"
    assert submitted(queue) == ["", "", f"{after}1", f"{after}2", f"{after}3"]
    said = capfd.readouterr()
    assert "[budget.seed=3] submitted 3, after 1\n" in said.err
    points = json.loads(said.out)["points"]
    assert [one["point"] for one in points] == [{"budget.seed": str(n)} for n in range(1, 6)]
    assert [Path(one["run"]).name for one in points][:2] == ["budget.seed=1", "budget.seed=2"]


def test_bad_points_are_explained(queue: Path, tmp_path: Path, capfd: Said) -> None:
    run = f"run={tmp_path / 'mine'}"
    assert sweep(tmp_path, "budget.global_batch_tokens=512,320", run) == 2
    said = capfd.readouterr().err
    assert "[budget.global_batch_tokens=320] budget.global_batch_tokens: 5 sequences" in said
    assert "Traceback" not in said
    assert len(submitted(queue)) == 1
    names = [path.name for path in (tmp_path / "mine").iterdir()]
    assert names == ["budget.global_batch_tokens=512"]
    tree = "children.given={at_tokens: 3_072, export: {}}"
    assert sweep(tmp_path, "budget.seed=1,2", tree, f"run={tmp_path / 'other'}") == 2
    assert "children: a sweep does not support children" in capfd.readouterr().err
    assert len(submitted(queue)) == 1


def test_refused_point_stops_no_other(queue: Path, tmp_path: Path, capfd: Said) -> None:
    sbatch = queue.parent / "sbatch"
    refusal = 'case "$*" in *seed=2*) echo "no such node" >&2; exit 1;; esac\n'
    sbatch.write_text(sbatch.read_text().replace("\n", f"\n{refusal}", 1))
    assert sweep(tmp_path, "budget.seed=1,2,3", "at_most=1") == 2
    said = capfd.readouterr().err
    assert "[budget.seed=2] cluster.scheduler: sbatch: no such node" in said
    assert submitted(queue) == ["", "--dependency=afterany:1"]


def test_interrupted_sweep_continues(queue: Path, tmp_path: Path, capfd: Said) -> None:
    sbatch = queue.parent / "sbatch"
    usual = sbatch.read_text()
    sbatch.write_text(
        '#!/bin/sh\ncase "$*" in *seed=2*) kill -2 $PPID; exit 1;; esac\n' + usual
    )
    assert sweep(tmp_path, "budget.seed=1,2,3") == 3
    assert len(submitted(queue)) == 1
    sbatch.write_text(usual)
    capfd.readouterr()
    assert sweep(tmp_path, "budget.seed=1,2,3") == 0
    assert len(submitted(queue)) == 3
    said = " ".join(capfd.readouterr().err.split())
    assert "[budget.seed=1] not submitted: " in said


def test_silent_scheduler_is_an_error(queue: Path, tmp_path: Path, capfd: Said) -> None:
    assert sweep(tmp_path, "budget.seed=1,2") == 0
    (queue.parent / "squeue").write_text("#!/bin/sh\necho no answer >&2; exit 1\n")
    assert sweep(tmp_path, "budget.seed=1,2") == 2
    said = capfd.readouterr().err
    assert said.count("cluster.scheduler: squeue: no answer\n  try again later") == 2
    assert "not submitted" not in said


def test_pbs_throttles_single_jobs(queue: Path, tmp_path: Path, capfd: Said) -> None:
    words = ("budget.seed=1,2", "at_most=1")
    assert sweep(tmp_path, *words, "cluster.jobs=2", cluster=AURORA) == 2
    said = capfd.readouterr().err
    assert "at_most: 2 jobs per run: PBS would start the next run after the first" in said
    assert "set cluster.jobs=1, or remove at_most" in said
    assert not queue.exists()
    assert sweep(tmp_path, *words, "cluster.jobs=1", cluster=AURORA) == 0
    first, second = queue.read_text().splitlines()
    assert first.startswith(str(tmp_path))
    assert second.startswith("-W depend=afterany:1 ")


def test_local_sweep_is_not_submitted(queue: Path, tmp_path: Path, capfd: Said) -> None:
    words = ("budget.seed=1,2", "action=submit", f"run={tmp_path / 'mine'}")
    assert main(["-m", *TINY, *words]) == 2
    assert capfd.readouterr().err.count("local has no scheduler") == 2
    assert main(["-m", *TINY, *words[:-1]]) == 2
    assert not any((ROOT / "runs").glob("teuken7b-sweep-*/budget.seed=1"))


def test_found_layout_is_submitted(queue: Path, tmp_path: Path, capfd: Said) -> None:
    words = [
        *(word for word in TINY if not word.startswith("parallelism.")),
        *("parallelism=auto", "cluster=juwels", "cluster.device=cpu"),
        "cluster.nodes=1",
    ]
    assert main([*words, "action=show", "output=json"]) == 0
    shown = json.loads(capfd.readouterr().out)["recipe"]
    assert main([*words, "site.account=kitchen", f"run={tmp_path / 'mine'}"]) == 0
    assert "submitted 1: " in capfd.readouterr().out
    assert len(submitted(queue)) == 1
    kept = json.loads((tmp_path / "mine" / "recipe.json").read_text())
    assert kept["parallelism"] == shown["parallelism"]
    assert kept["cluster"]["ranks"] == 4


RECIPE = ("-m", "recipe=teuken7b")


def points_of(*words: str) -> list[str]:
    return [point[-1].partition("=")[2] for point in split_sweep(words)[1]]


CELLS = re.findall(
    r"^\| `(\S[^`]*=[^`]*)` \| (`.*|refused: .*) \|$",
    (ROOT / "docs" / "hydra.md").read_text("utf-8").partition("## Values of a sweep")[2],
    re.M,
)


def test_the_page_lists_the_functions_of_hydras_grammar() -> None:
    functions = ["choice", "range", "float", "sort", "tag", "glob", "interval", "shuffle"]
    written = " ".join(word for word, _ in CELLS)
    assert [name for name in functions if f"{name}(" not in written] == []


@pytest.mark.parametrize(("word", "stands_for"), CELLS)
def test_page_value_holds_in_sweep(word: str, stands_for: str, capfd: Said) -> None:
    beside = () if word.startswith("recipe=") else RECIPE[1:]
    refused = stands_for.removeprefix("refused: ")
    if refused == stands_for:
        assert points_of("-m", *beside, word) == re.findall("`([^`]*)`", stands_for)
        assert main([*beside, word, "action=show"]) == 2
        assert "add -m to sweep over values" in capfd.readouterr().err
        return
    said = []
    for words in (["-m", *beside, word], [*beside, word]):
        assert main([*words, "action=show"]) == 2
        said.append(capfd.readouterr().err)
    assert refused in said[0]
    assert said[0] == said[1] or "add -m" in said[1]


def test_a_glob_chooses_recipes_and_files_of_a_group() -> None:
    bloom = ["bloom176b", "bloom1b1", "bloom1b7", "bloom3b", "bloom560m", "bloom7b1"]
    assert points_of("-m", "recipe=glob(bloom*)") == bloom
    assert points_of("-m", "recipe=glob([bloom*,gpt3*],exclude=*b1)") == [
        *("bloom176b", "bloom1b7", "bloom3b", "bloom560m", "gpt3b6")
    ]
    assert points_of(*RECIPE, "tracking=glob(*)") == ["both", "mlflow", "none", "wandb"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("optimizer.lr=interval(1e-4,1e-3)", "is not a list of values\n  write values or "),
        ("optimizer.lr=glob(1*)", "requires a group, but optimizer.lr is not a group"),
        ("recipe=glob(walnut*)", "recipe: glob(walnut*) has no values"),
        ("model.dim=range(3,1)", "model.dim: range(3,1) has no values"),
        ("model.dim=range(1,9,0)", "model.dim: range(1,9,0) cannot be listed: range() arg 3"),
        ("model.dim=choice(choice(1,2),3)", "cannot be listed: "),
        ("model.dim=shuffle(1,2)", "needs the same order of points\n  remove shuffle"),
        ("model.dim=range(0,1e18)", "model.dim: a sweep can have at most 10,000 points"),
        ("model.dim=walnut(1)", "Unknown function 'walnut'"),
        ("model.dim=choice(1,2,1)", "choice(1,2,1) lists 1 twice\n  keep one of them"),
    ],
)
def test_a_value_without_a_list_has_a_message(word: str, message: str, capfd: Said) -> None:
    words = RECIPE if not word.startswith("recipe=") else RECIPE[:1]
    assert main([*words, word, "action=show"]) == 2
    assert message in capfd.readouterr().err


def test_local_and_scheduled_points_are_two_commands(capfd: Said) -> None:
    assert main([*RECIPE, "cluster=local,juwels"]) == 2
    said = capfd.readouterr().err
    assert "cluster: some points need a scheduler, and others do not\n  use a" in said
    assert main([*RECIPE, "cluster=local,juwels", "action=show"]) == 0


def test_the_product_of_all_keys_is_bounded_before_it_is_made() -> None:
    words = [*(f"model.{n}=range(0,1000)" for n in "ab"), "budget.seed=range(1001)"]
    with pytest.raises(RecipeError, match=r"budget\.seed: a sweep can have at most 10,000"):
        split_sweep([*RECIPE, *words])


@pytest.mark.parametrize("text", ["teuken7b 'x", "teuken7b \\", ""])
def test_compared_sides_that_are_not_words_have_a_message(text: str, capfd: Said) -> None:
    assert main(["action=diff", f"a={text}", "b=teuken7b"]) == 2
    assert capfd.readouterr().err.startswith("a: ")


def test_sweep_without_run_has_no_table(folder: Path, capfd: Said) -> None:
    assert main(["-m", "recipe=teuken7b", "optimizer.lr=-1,-2"]) == 2
    said = capfd.readouterr()
    assert said.out.count("should be greater than 0") == 2
    assert "repeat the command to continue" not in said.err
    assert list(folder.iterdir()) == []
