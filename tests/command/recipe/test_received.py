"""What a file says is data: choices, values and places of locks, bundles and studies."""

import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from command.arguments import read_point
from command.evaluate.queue import evaluate_in_jobs
from command.main import main
from command.received_site import check_received_site
from command.recipe.lock_file import ReceivedLock, read_given
from components.checkpoint.metadata import MARKER
from components.config.check import check_recipe
from components.config.recipe import Recipe
from components.errors import RecipeError
from components.run.folder import RunFolder, create_run_folder
from components.run.ownership import seal_of
from components.sharing.lock import is_sealed, write_text
from tests.cluster.jobs import recipe_of
from tests.command.study.test_listed import RATES

SMALL = ("recipe=bloom560m", "model.dim=64")
Said = pytest.CaptureFixture[str]
Tree = dict[str, Any]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tree]:
    """A lock and a bundle as mappings, for tests to change."""
    folder = tmp_path_factory.mktemp("written")
    found = {}
    for kind in ("lock", "recipe"):
        file = folder / f"x.{kind}.yaml"
        assert main([*SMALL, "action=pack", f"file={file}"]) == 0
        found[kind] = yaml.safe_load(file.read_text("utf-8"))
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def forge(tree: Tree, *steps: str, **changes: Any) -> Tree:
    """Copy ``tree`` with other keys in the mapping that ``steps`` lead to."""
    copy: Tree = yaml.safe_load(yaml.safe_dump(tree))
    inner = copy
    for step in steps:
        inner = inner[step]
    inner.update(changes)
    return copy


def save(tree: Tree, name: str) -> str:
    Path(name).write_text(yaml.safe_dump(tree, sort_keys=False), "utf-8")
    return name


CHOICES = {
    "hydra.searchpath": "[pkg://canary]",
    "cluster": "../../../x",
    "scale": "mini,hydra.searchpath=[pkg://canary]",
    "recipe": "teuken7b",
}


@pytest.mark.parametrize("group", CHOICES)
def test_choice_exists(group: str, written: Tree, folder: Path, capfd: Said) -> None:
    for kind in ("lock", "recipe"):
        forged = forge(written[kind], "requested", "choices", **{group: CHOICES[group]})
        file = save(forged, "x.lock.yaml")
        for words in (
            ["action=verify", f"file={file}"],
            ["action=diff", f"a={file}", "b=bloom560m"],
        ):
            assert main(words) == 2
            assert f"requested.choices.{group}: " in capfd.readouterr().err


def test_resealed_lock_is_checked(written: Tree, folder: Path, capfd: Said) -> None:
    forged = forge(written["lock"], "requested", "values", description="sealed again")
    save(forged, "plain.yaml")
    given = read_given(Path("plain.yaml"))
    assert isinstance(given, ReceivedLock)
    head, seal, body = write_text(given.lock, "by somebody").partition("below: ")
    body = body[65:].replace("sealed again", "${oc.env:HOME}")
    text = f"{head}{seal}{sha256(body.encode()).hexdigest()}\n{body}"
    assert is_sealed(text)
    Path("x.lock.yaml").write_text(text)
    assert main(["action=verify", "file=x.lock.yaml"]) == 2
    assert "write a reference as ${section.key}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("steps", "changes", "message"),
    [
        (("resolved", "scale"), {"name": "mini,+x=1"}, "resolved.scale.name: unknown scale"),
        (("resolved",), {"scale": 3}, "resolved.scale: 3 is not a mapping"),
        (("resolved",), {"precision": {}}, "resolved.precision.compute: is missing"),
        (("resolved",), {"parallelism": {"foo": 1}}, "this version has no such key"),
        (("resolved", "data"), {"sources": {"x": 1}}, "resolved.data.sources.x: 1 is no"),
        (("resolved",), {"model": {"mlp": 7}}, "resolved.model.mlp: 7 is not a mapping"),
        (("fingerprint",), {"layout": 7}, "fingerprint.layout: input should be a valid"),
        (("software", "code"), {"commit": "--output=/tmp/x"}, "software.code.commit"),
        (("requested",), {"recipe": "../bloom560m.yaml"}, "leads out of the working directory"),
        (("requested",), {"recipe": "x/bloom560m"}, "is not a name"),
    ],
)
def test_a_forged_lock_is_refused_with_the_key(steps, changes, message, written, folder, capfd):
    file = save(forge(written["lock"], *steps, **changes), "x.lock.yaml")
    assert main(["action=verify", f"file={file}"]) == 2
    assert message in capfd.readouterr().err


def test_lock_points_to_no_data(written, folder, tmp_path, capfd):
    elsewhere = {"data.folder": str(tmp_path / "elsewhere")}
    file = save(forge(written["lock"], "requested", "values", **elsewhere), "x.lock.yaml")
    main(["action=verify", f"file={file}"])
    note = "prepared data not read"
    assert note in " ".join(capfd.readouterr().out.split())
    main(["action=verify", f"file={file}", f"data.folder={tmp_path}/elsewhere"])
    assert note not in " ".join(capfd.readouterr().out.split())


PLACES = [
    *(("data.folder", "linked/deep"), ("data.tokenizer_folder", "../beside")),
    *(("checkpoint.copy_to", "~/mine"), ("data.folder", "/somewhere/else")),
]


@pytest.mark.parametrize(("key", "where"), PLACES)
def test_paths_of_a_bundle_and_a_recipe_stay_in_the_working_folder(
    key: str, where: str, written: Tree, folder: Path, tmp_path: Path, capfd: Said
) -> None:
    (folder / "linked").symlink_to(tmp_path)
    section, _, name = key.partition(".")
    bundle = forge(written["recipe"], "composed", section, **{name: where})
    recipe = {"defaults": ["bloom560m", "_self_"], "name": "r", section: {name: where}}
    for file in (save(bundle, "x.recipe.yaml"), save(recipe, "r.yaml")):
        assert main([f"recipe=./{file}", "action=show"]) == 2
        assert f"{key}: {where!r} leads out of the working directory" in capfd.readouterr().err
        assert main([f"recipe=./{file}", f"{key}='{where}'", "action=show"]) == 0
        capfd.readouterr()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "../out/index"}, "name: string should match pattern"),
        ({"recipe": "/etc/x.yaml"}, "'/etc/x.yaml' leads out of the working directory"),
        ({"set": {"data.folder": "/somewhere"}}, "'/somewhere' leads out"),
        ({"set": {"data.tokenizer_folder": "../x"}}, "'../x' leads out"),
        ({"set": {"scale": "mini"}}, "set.scale: is a section or a group, not a key"),
    ],
)
@pytest.mark.parametrize("action", ["plan", "train"])
def test_a_study_names_no_path_outside(changes, message, action, folder, capfd):
    objective = {"measured": "held_out.final", "planned": "time.step_seconds"}
    file = save(RATES | {"objective": objective} | changes, "s.yaml")
    assert main(["-m", f"study={file}", f"action={action}", "cluster=juwels"]) == 2
    said = capfd.readouterr()
    assert message in said.err + " ".join(said.out.split())
    assert {path.name for path in folder.iterdir()} <= {"s.yaml", "runs"}


def test_words_of_the_user_are_trusted_with_a_received_study(folder: Path, capfd: Said) -> None:
    file = save(RATES, "s.yaml")
    words = ["-m", f"study={file}", "action=plan", "cluster=juwels", "scale=full"]
    main([*words, "data.folder=/somewhere"])
    assert "leads out" not in "".join(capfd.readouterr())


def bomb(levels: int) -> Tree:
    entry = {"value": 1, "unit": "x", "source": "xxxx"}
    published = {"a0": entry}
    for level in range(1, levels):
        twice = f"${{published.a{level - 1}.source}}" * 2
        published[f"a{level}"] = {**entry, "source": twice}
    return {"defaults": ["bloom560m", "_self_"], "name": "b", "published": published}


def test_multiplying_references_are_only_counted(folder: Path, capfd: Said) -> None:
    began = time.process_time()  # other processes do not change CPU time
    assert main([f"recipe=./{save(bomb(400), 'b.yaml')}", "action=show"]) == 2
    assert time.process_time() - began < 10
    assert "references expand to more than" in capfd.readouterr().err


@pytest.mark.parametrize("escape", [r"\e]0;owned\a", r"\u2028", r"\x9b"])
def test_terminal_escape_is_refused_by_line(escape: str, folder: Path, capfd: Said) -> None:
    text = f'defaults: [bloom560m, _self_]\nname: e\ndescription: "{escape}"\n'
    Path("e.yaml").write_text(text, "utf-8")
    assert main(["recipe=./e.yaml", "action=show"]) == 2
    said = capfd.readouterr().err
    assert said.startswith("e.yaml:3: e.yaml is not plain YAML: a string contains the con")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallelism": True}, "parallelism: input should be a valid dict"),
        ({"cluster": 3}, "a recipe cannot set cluster or scale"),
        ({"model": {"_partial_": True}}, "model._partial_: True"),
        ({"budget": {"total_tokens": 10**24}}, "budget.total_tokens: input should be less"),
        ({"parallelism": {"data": 999_999_999}}, "parallelism.data: input should be less"),
    ],
)
def test_impossible_values_have_a_message(changes, message, folder, capfd):
    tree = {"defaults": ["bloom560m", "_self_"], "name": "v", **changes}
    began = time.process_time()  # other processes do not change CPU time
    assert main([f"recipe=./{save(tree, 'v.yaml')}", "action=show"]) == 2
    assert time.process_time() - began < 10
    assert message in capfd.readouterr().err


def test_a_plan_may_end_after_the_year_9999(capfd: Said) -> None:
    words = ["recipe=teuken7b", "cluster=juwels", "budget.total_tokens=1" + "0" * 18]
    assert main([*words, "action=plan"]) == 0
    assert "after the year 9999" in capfd.readouterr().out


TOUCH = "touch ran"


def with_commands(key: str) -> Recipe:
    """Put a command where it would reach a job script or the start of its tasks."""
    recipe = recipe_of("recipe=teuken7b", "cluster=juwels")
    tree: Tree = recipe.model_dump(mode="json")
    site = tree["cluster"]["site"]
    match key:
        case "setup":
            site["setup"] = [{"run": TOUCH, "reason": "x"}]
        case "environment":
            site["environment"]["LD_PRELOAD"] = {"value": "/tmp/x.so", "reason": "x"}
        case "launch" | "modules" | "directives" | "rank_wrapper":
            site[key] = [f"--task-prolog={TOUCH}"]
        case "queues":
            tree["cluster"]["queues"][0]["options"] = ["--mail-user=x"]
        case "name":
            tree["cluster"]["name"] = "elsewhere"
    return check_recipe(tree)


def received_run(recipe: Recipe, folder: Path) -> RunFolder:
    run = create_run_folder(recipe, folder / "run")
    seal_of(run.recipe).unlink(missing_ok=True)
    (run.checkpoints / "tokens-000000000000001").mkdir(parents=True)
    (run.checkpoints / "tokens-000000000000001" / MARKER).touch()
    return run


KEYS = ["setup", "environment", "launch", "modules", "directives", "rank_wrapper", "queues"]


@pytest.mark.parametrize("key", [*KEYS, "name"])
def test_commands_of_a_received_recipe_reach_no_script(key: str, tmp_path: Path) -> None:
    run = received_run(with_commands(key), tmp_path)
    point = read_point(["action=evaluate", "executor=array", f"run={run.path}"])
    with pytest.raises(RecipeError, match=r"cluster\.site: differs from the profile"):
        evaluate_in_jobs(point)
    assert not (run.path / "evaluation").exists()


def test_received_launch_is_refused(tmp_path, monkeypatch, capfd):
    run = received_run(with_commands("launch"), tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert main(["action=preflight", f"run={run.path}"]) == 2
    assert "cluster.site: differs from the profile" in capfd.readouterr().err


def test_received_run_of_a_known_profile_and_own_run_have_jobs(tmp_path: Path) -> None:
    for name in ("juwels", "hopper_2025"):
        recipe = recipe_of("recipe=teuken7b", f"cluster={name}", "cluster.hours=2")
        check_received_site(received_run(recipe, tmp_path / name), recipe)
    own = with_commands("setup")
    check_received_site(create_run_folder(own, tmp_path / "own"), own)
