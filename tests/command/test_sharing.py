"""``lock``, ``verify``, ``diff`` and ``pack`` as a user meets them, without a run."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.main import main
from components.run.provenance import hash_room
from components.sharing.lock import is_sealed

Said = pytest.CaptureFixture[str]

Json = Callable[..., dict[str, Any]]
MADE: dict[str, str] = {}
SMALL = ("recipe=bloom560m", "model.dim=64")


pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def answer(capfd: Said) -> Json:
    """Act, and read the one JSON object that it prints."""

    def call(*words: str, status: int = 0) -> dict[str, Any]:
        capfd.readouterr()
        code = main([*words, "output=json"])
        said = capfd.readouterr()
        assert code == status, said.err
        tree: dict[str, Any] = json.loads(said.out)
        return tree

    return call


@pytest.fixture(scope="module", autouse=True)
def made(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Write a lock and a bundle once; tests work on copies."""
    for name in ("x.lock.yaml", "x.recipe.yaml"):
        file = tmp_path_factory.mktemp("made") / name
        assert main([*SMALL, "action=pack", f"file={file}"]) == 0
        MADE[name] = file.read_text("utf-8")


def give(name: str) -> None:
    Path(name).write_text(MADE[name], "utf-8")


def keys(tree: dict[str, Any], group: str) -> set[str]:
    return {one["key"] for one in tree["differences"][group]}


def test_other_machines_and_layouts_are_the_same_mathematics(answer: Json) -> None:
    a = "a=gpt175b cluster=smng_p2"
    tree = answer("action=diff", a, "b=gpt175b cluster=hopper data.folder=elsewhere")
    assert (tree["same_mathematics"], tree["same_layout"]) == (True, True)
    assert not tree["same_machine"]
    assert {"cluster.name", "data.folder"} <= keys(tree, "machine")
    words = ("action=diff", "scale=mini", "a=teuken7b", "b=teuken7b cluster.ranks=8")
    tree = answer(*words)
    assert (tree["same_mathematics"], tree["same_layout"]) == (True, False)
    assert {"parallelism.data", "parallelism.tensor"} <= keys(tree, "layout")
    assert {"cluster.ranks"} <= keys(tree, "machine")
    assert not any("masks" in note for note in tree["notes"])
    dropping = answer(*words, "model.dropout=0.1")
    assert dropping["same_mathematics"]
    assert any("draws different" in note for note in dropping["notes"])


def test_diff_separates_mathematics_from_records_and_machine(answer: Json) -> None:
    words = {
        *("optimizer.eps=1e-6", "model.dropout=0.2", "data.document_mask=true"),
        *("tokenizer.normalization=nfc", "budget.seed=7", "precision.reduce=bfloat16"),
    }
    tree = answer("action=diff", "a=bloom7b1", f"b=bloom7b1 {' '.join(words)}")
    assert (tree["same_mathematics"], tree["same_layout"]) == (False, True)
    assert {word.partition("=")[0] for word in words} <= keys(tree, "mathematics")
    words = {"description=another", "evaluation.every_tokens=8_192", "checkpoint.keep=7"}
    tree = answer("action=diff", "a=bloom7b1", f"b=bloom7b1 {' '.join(words)}")
    assert (tree["same_mathematics"], tree["same_layout"]) == (True, True)
    changed = keys(tree, "record") | keys(tree, "machine")
    assert changed == {word.partition("=")[0] for word in words}


def test_a_lock_holds_until_something_changes(folder: Path, answer: Json) -> None:
    give("x.lock.yaml")
    tree = answer("action=verify", "file=x.lock.yaml")
    assert all(tree[f"same_{group}"] for group in ("mathematics", "layout", "machine"))
    assert any("prepared data" in note for note in tree["notes"])
    assert [path.name for path in folder.iterdir()] == ["x.lock.yaml"]
    assert main(["action=diff", "a=x.lock.yaml", "b=bloom560m"]) == 0


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("eps: 1.0e-08", "eps: 1.0e-07", "optimizer.eps"),
        ("corpora: ", "corpora: x", "code.corpora"),
        ("components/model: ", "components/model: x", "code.components/model"),
        ("clip_norm: 1.0", "clip_norm: 2.0", "optimizer.clip_norm"),
    ],
)
def test_an_edited_lock_has_a_message(old: str, new: str, key: str, answer: Json) -> None:
    give("x.lock.yaml")
    file = Path("x.lock.yaml")
    text = (
        file
        .read_text("utf-8")
        .replace('corpora: "', "corpora: ")
        .replace('components/model: "', "components/model: ")
    )
    assert old in text
    file.write_text(_unquoted(text.replace(old, new)), "utf-8")
    found = keys(answer("action=verify", "file=x.lock.yaml", status=1), "mathematics")
    assert {key, "x.lock.yaml"} <= found


def _unquoted(text: str) -> str:
    """Take the quotes of hashes away whose first quote was taken."""
    return "\n".join(
        line.rstrip('"') if line.count('"') == 1 else line for line in text.splitlines()
    )


def test_every_byte_below_the_seal_is_sealed() -> None:
    give("x.lock.yaml")
    text = Path("x.lock.yaml").read_text("utf-8")
    assert is_sealed(text)
    start = text.index("\nlock: 1")
    for place in range(start + 1, len(text), 97):
        assert not is_sealed(text[:place] + "~" + text[place + 1 :])


def test_a_changed_byte_of_code_changes_the_hash_of_its_package(folder: Path) -> None:
    room = folder / "room"
    room.mkdir()
    (room / "a.py").write_text("x = 1\n")
    before = hash_room(room)
    (room / "a.py").write_text("x = 2\n")
    assert hash_room(room) != before
    (room / "a.py").write_text("x = 1\n")
    (room / "__pycache__").mkdir()
    (room / "__pycache__" / "a.pyc").write_text("compiled")
    assert hash_room(room) == before
    (room / "a.py").rename(room / "b.py")
    assert hash_room(room) != before


def test_a_bundle_composes_the_packed_recipe_at_every_scale() -> None:
    words = ["model.dim=64", "optimizer.lr=1e-4", "data.folder=mine", "cluster.ranks=2"]
    main(["recipe=teuken7b", *words, "action=pack", "file=x.recipe.yaml"])
    named = compose_recipe(read_point(["recipe=teuken7b", *words[:2], words[3]]))
    received = compose_recipe(read_point(["recipe=x.recipe.yaml"]))
    assert received == named
    juwels = ["cluster=juwels", "scale=full", "optimizer.lr=2e-4"]
    at_home = compose_recipe(read_point(["recipe=teuken7b", words[0], *juwels]))
    assert compose_recipe(read_point(["recipe=./x.recipe.yaml", *juwels])) == at_home


def test_the_commands_in_a_file_of_an_unusual_name_are_quoted(folder: Path) -> None:
    for kind in ("lock", "recipe"):
        name = f"it's mine.{kind}.yaml"
        assert main(["action=pack", "recipe=teuken7b", f"file={name}"]) == 0
        lines = (folder / name).read_text("utf-8").splitlines()
        commands = [line.partition("python run.py ")[2] for line in lines]
        words = [shlex.split(command) for command in commands if command]
        run = [] if kind == "lock" else [[f"recipe=./{name}"]]
        assert words == [*run, ["action=verify", f"file={name}"]]


def test_a_full_size_bundle_keeps_its_size_everywhere(capfd: Said) -> None:
    packed = ["recipe=teuken7b", "cluster=juwels", "action=pack", "file=x.recipe.yaml"]
    assert main(packed) == 0
    capfd.readouterr()
    here = compose_recipe(read_point(["recipe=x.recipe.yaml"]))
    full = compose_recipe(read_point(["recipe=teuken7b", "scale=full"]))
    assert here.decoder_spec == full.decoder_spec
    assert main(["recipe=x.recipe.yaml", "action=show", "output=json"]) == 0
    said = capfd.readouterr().err
    assert "the bundle sets scale=full; add scale=mini to train a miniature" in said
    words = ["recipe=x.recipe.yaml", "scale=mini"]
    small = compose_recipe(read_point(words))
    assert small == compose_recipe(read_point(["recipe=teuken7b"]))
    assert main([*words, "action=show", "output=json"]) == 0
    assert "bundle:" not in capfd.readouterr().err
    give("x.recipe.yaml")  # of a miniature, which stays one on a cluster
    assert main(["recipe=x.recipe.yaml", "cluster=juwels", "action=show", "output=json"]) == 0
    output = capfd.readouterr()
    assert json.loads(output.out)["recipe"]["scale"]["name"] == "mini"
    assert "the bundle sets scale=mini; add scale=full for" in output.err


def test_a_bundle_needs_no_file_of_its_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    give("x.recipe.yaml")
    text = Path("x.recipe.yaml").read_text("utf-8").replace("recipe: bloom560m", "recipe: gone")
    Path("x.recipe.yaml").write_text(text, "utf-8")
    assert compose_recipe(read_point(["recipe=x.recipe.yaml"])).name == "bloom560m"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("values: {", "values: {cluster.site.setup: [], ", "a bundle cannot set its machine"),
        ("values: {", "values: {hydra.run.dir: x, ", "a bundle cannot set its machine"),
        ("values: {", 'values: {description: "${oc.env:HOME}", ', "as ${section.key}"),
        ("components.model.mlp.MLP", "components.train.agent.Agent", "composed.model.mlp._t"),
        ("composed:\n", "composed:\n  cluster: {}\n", "the section cluster is not a section"),
        ("  reference_cluster: jean_zay_v100\n", "", "section reference_cluster is missing"),
        ("lock: 1", "lock: 2", "lock: input should be 1"),
    ],
)
def test_hostile_bundle_is_refused(old: str, new: str, message: str, capfd: Said) -> None:
    give("x.recipe.yaml")
    head, composed, tail = Path("x.recipe.yaml").read_text("utf-8").partition("composed:\n")
    parts = [head, composed + tail]
    place = 0 if old.startswith(("values", "lock")) else 1
    assert old in parts[place]
    parts[place] = parts[place].replace(old, new, 1)
    Path("x.recipe.yaml").write_text("".join(parts), "utf-8")
    assert main(["recipe=x.recipe.yaml", "action=show"]) == 2
    said = capfd.readouterr().err
    assert message in said
    assert said.splitlines()[-2 if "\n  " in said else -1].startswith("x.recipe.yaml:")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("action=verify",), "file: a lock is required"),
        (("action=verify", "file=mine.yaml"), "mine.yaml is a recipe, not a lock"),
        (("action=verify", "file=stale.lock.yaml"), "locked recipe is no longer valid: recipe"),
        (("action=diff", "a=bloom560m"), "b: action=diff requires a= and b="),
        (("recipe=x.lock.yaml", "action=show"), "a lock does not contain the recipe"),
        ((*SMALL, "action=pack", "parallelism=auto"), "auto may find a different layout"),
        ((*SMALL, "action=pack", "file=."), "file: . is a folder"),
        (("recipe=x.recipe.yaml", "optimizer=adam"), "optimizer: the bundle already sets"),
    ],
)
def test_wrong_input_has_a_message(words: tuple[str, ...], message: str, capfd: Said) -> None:
    Path("mine.yaml").write_text("defaults: [bloom560m]\n")
    give("x.lock.yaml")
    give("x.recipe.yaml")
    text = Path("x.lock.yaml").read_text("utf-8").replace("recipe: bloom560m", "recipe: gone")
    Path("stale.lock.yaml").write_text(text, "utf-8")
    capfd.readouterr()
    assert main(words) == 2
    assert message in capfd.readouterr().err


def test_an_existing_file_is_replaced_only_by_name(capfd: Said) -> None:
    assert main([*SMALL, "action=pack"]) == 0
    name = capfd.readouterr().out.strip()
    assert main([*SMALL, "action=pack"]) == 2
    assert f"{name} already exists" in capfd.readouterr().err
    assert main([*SMALL, "action=pack", f"file={name}"]) == 0


def test_shared_files_name_no_folder_of_the_author(folder, monkeypatch, answer, capfd):
    home = folder / "anna"
    (home / "work").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home / "work")
    for text in (home / "one" / "x.txt", home / "two" / "x.txt", home / "work" / "y.txt"):
        text.parent.mkdir(exist_ok=True)
        text.write_text(f"a text of {text}\n" * 400)
    files = f"[{home}/one/x.txt,{home}/two/x.txt,{home}/work/y.txt]"
    words = [
        "recipe=bloom560m",
        "scale=mini",
        f"data.sources={{web:{{files:{files}}}}}",
        "data.shares={web:1.0}",
        "tokenizer.vocab_size=300",
        f"data.folder={home}/prepared",
        f"description='as in {home}/notes'",
    ]
    assert main([*words, "action=prepare"]) == 0
    for file in ("x.lock.yaml", "x.recipe.yaml"):
        assert main([*words, "action=pack", f"file={file}"]) == 0
        assert "anna" not in Path(file).read_text("utf-8")
        tree = answer("action=verify", f"file={file}", f"data.folder={home}/prepared")
        assert tree["same_mathematics"]
        assert not any("prepared data" in note for note in tree["notes"])
    (home / "two" / "x.txt").write_text("another\n" * 400)
    assert main([*words, "action=prepare"]) == 0
    verify = ("action=verify", "file=x.lock.yaml", f"data.folder={home}/prepared")
    assert "data: source web" in keys(answer(*verify, status=1), "mathematics")
    capfd.readouterr()
    assert main(["recipe=./x.recipe.yaml"]) == 2
    error = capfd.readouterr().err
    assert "data.sources.web.files" in error
    assert "no file matches" in error


@pytest.mark.long
def test_locks_and_bundles_contain_the_parent(answer: Json) -> None:
    parent = ("from.recipe=teuken7b", "from.at_tokens=3_000_000_000_000", "from.with=optimizer")
    words = ("recipe=teuken7b", "scale=full", *parent)
    for file in ("a.lock.yaml", "b.recipe.yaml"):
        assert main([*words, "action=pack", f"file={file}"]) == 0
    assert main(["action=verify", "file=a.lock.yaml"]) == 0
    found = answer("action=diff", "a=a.lock.yaml", "b=teuken7b")
    assert keys(found, "mathematics") == {"from.at_tokens", "from.fingerprint", "from.with"}
    assert keys(found, "record") == {"from.recipe"}
    packed = answer("action=show", "recipe=./b.recipe.yaml")
    assert packed["fingerprint"] == answer("action=show", *words)["fingerprint"]
