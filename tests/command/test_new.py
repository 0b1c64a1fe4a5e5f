"""``action=new`` writes a recipe that composes as it stands, or says what is in the way."""

import json
import re
from pathlib import Path

import pytest
import yaml
from tokenizers import ByteLevelBPETokenizer, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.recipes import published_recipes
from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.main import main
from components.command_line import command_line
from components.config.recipe import Recipe
from components.config.schema.types import to_plain

Said = pytest.CaptureFixture[str]

WORDS = ("the", "miller", "carries", "flour", "over", "a", "bridge", "every", "morning", "and")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with ten texts; a clone's recipes lie in it, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("command.new_recipe.page.ROOT", tmp_path)
    write_texts(tmp_path / "texts")
    return tmp_path


def write_texts(folder: Path, *, paragraphs: int = 40) -> None:
    folder.mkdir()
    for number in range(10):
        text = "\n\n".join(
            " ".join(WORDS[(line * word + number) % 10] for word in range(3, 15))
            + f" {line * number}"
            for line in range(paragraphs)
        )
        (folder / f"{number}.txt").write_text(text, "utf-8")


def save_tokenizer(folder: Path) -> Tokenizer:
    """Train by `tokenizers` alone; its end of a document is the first piece."""
    engine = ByteLevelBPETokenizer()
    engine.train_from_iterator([" ".join(WORDS)], 300, 1, special_tokens=["<|endoftext|>"])
    folder.mkdir(exist_ok=True)
    engine.save(str(folder / "tokenizer.json"))
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def new(*words: str) -> None:
    assert main(["action=new", "name=mine", *words]) == 0


def composed(file: str = "recipes/mine.yaml") -> Recipe:
    return compose_recipe(read_point([f"recipe={file}", "scale=full"]))


def refused(capfd: Said, *words: str) -> str:
    before = sorted(Path.cwd().rglob("*"))
    assert main(["action=new", *words]) == 2
    assert sorted(Path.cwd().rglob("*")) == before
    return capfd.readouterr().err


def test_new_writes_one_file_that_composes(home: Path, capfd: Said) -> None:
    before = {*home.rglob("*")}
    new("data=texts/*.txt", "parameters=1M")
    file = home / "recipes" / "mine.yaml"
    assert {*home.rglob("*")} - before == {file.parent, file}
    out, err = capfd.readouterr()
    assert out == f"{file}\n"
    assert f"train it: {command_line('recipe=mine')}" in err
    recipe = composed()
    assert (recipe.name, recipe.reference_cluster) == ("mine", "local")
    assert recipe.data.sources["text"].files == ("texts/*.txt",)
    assert dict(recipe.data.shares) == {"text": 1.0}
    assert recipe.data.tokenizer_folder == "none"
    assert recipe.tokenizer["vocab_size"] == recipe.decoder_spec.vocab_size == 384
    assert recipe.derived_numbers.parameters.total == pytest.approx(1e6, rel=0.1)
    assert recipe.cluster.ranks == 1
    page = file.read_text("utf-8")  # where every number that was chosen has its reason
    for source in ("2203.15556", "2305.16264", "2005.14165", "2401.02954", "2002.05202"):
        assert f"arXiv {source}" in page
    assert "`python run.py action=new name=mine 'data=texts/*.txt' parameters=1M`" in page
    assert all(len(line) < 140 for line in page.splitlines())


def test_the_folder_of_a_tokenizer_decides_vocabulary_and_end_of_document(home: Path) -> None:
    engine = save_tokenizer(home / "mine_tok")
    saved = PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="<|endoftext|>")
    saved.save_pretrained(home / "mine_tok")  # with a longest text of 31 digits
    new("data=texts/*.txt", "tokenizer=mine_tok")
    recipe = composed()
    assert recipe.data.tokenizer_folder == "mine_tok"
    sizes = {recipe.tokenizer["vocab_size"], recipe.decoder_spec.vocab_size}
    assert sizes == {engine.get_vocab_size()}
    assert recipe.tokenizer["eod"] == "<|endoftext|>"
    assert list(recipe.tokenizer["first_pieces"]) == ["<|endoftext|>"]
    assert recipe.decoder_spec.padded_vocab_size % 64 == 0


def test_document_end_may_be_the_last_piece(home: Path) -> None:
    engine = save_tokenizer(home / "tok")
    engine.add_special_tokens(["<stop>", "<pad>"])
    engine.save(str(home / "tok" / "tokenizer.json"))
    named = {"eos_token": {"content": "<stop>"}}
    (home / "tok" / "tokenizer_config.json").write_text(json.dumps(named))
    new("data=texts/*.txt", "tokenizer=tok")
    recipe = composed()
    assert list(recipe.tokenizer["last_pieces"]) == ["<stop>", "<pad>"]
    assert recipe.tokenizer["eod"] == "<stop>"


def test_each_pattern_is_a_source(home: Path) -> None:
    for language in ("de", "no"):  # the second is a boolean where YAML is not quoted
        write_texts(home / language)
    new("data=[de/*.txt,no/*.txt,texts/0.txt,texts/1.txt]")
    recipe = composed()
    assert [*recipe.data.sources] == ["de", "no", "0", "1"]
    assert recipe.data.mixture == "natural"
    assert not recipe.data.shares


def test_text_outside_has_its_absolute_path_in_a_trusted_recipe(
    home: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Said,
) -> None:
    folder = tmp_path_factory.mktemp("scratch") / "texts"
    write_texts(folder)
    err = refused(capfd, "name=a", f"data={folder}/*.txt", "file=here.yaml")
    assert "here.yaml is not in a trusted folder" in err
    assert "remove file= to write" in err
    monkeypatch.setattr("command.files.trusted_paths.private_folder", lambda: home)
    new(f"data={folder}/*.txt")
    tree = yaml.safe_load((home / "recipes" / "mine.yaml").read_text("utf-8"))
    assert tree["data"]["sources"]["text"]["files"] == [f"{folder}/*.txt"]
    assert tree["description"].endswith(", on *.txt.")  # a card is published, and quotes it


def test_without_text_the_standard_library_is_the_text(home: Path) -> None:
    new("file=here.yaml")
    assert not (home / "recipes").exists()
    recipe = composed("here.yaml")
    assert recipe.name == "mine"
    sources = {source.embedded for source in recipe.data.sources.values()}
    assert sources == {"python/source", "python/docs"}


def test_other_file_is_kept(home: Path, capfd: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def come(*_: object) -> None:
        (home / "recipes" / "mine.yaml").write_text("mine: it came")

    monkeypatch.setattr("command.actions.new.check_composes", come)
    assert main(["action=new", "name=mine"]) == 2
    assert "already exists" in capfd.readouterr().err
    assert [one.read_text() for one in (home / "recipes").iterdir()] == ["mine: it came"]
    assert "mine.yaml already exists" in refused(capfd, "name=a", "file=recipes/mine.yaml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("data=texts/*.txt",), "name: the recipe requires a name"),
        (("name=My-Model",), "name: 'My-Model' is not a valid name"),
        (("name=teuken7b",), "the recipe 'teuken7b' already exists"),
        (("name=a", "file=a.yml"), "a.yml does not end in .yaml"),
        (("name=a", "data=nothing/*.txt"), "data: no file matches nothing/*.txt"),
        (("name=a", "data="), "data: data= is empty"),
        (("name=a", "data=texts"), "data: texts is a folder"),
        (("name=a", "data=texts/0.txt"), "files of 2,"),
        (("name=a", "data=[texts/*.txt,texts/0.txt]"), "texts/0.txt is listed twice"),
        (("name=a", "tokenizer=nothing"), "tokenizer: nothing is not a folder"),
        (("name=a", "tokenizer=texts"), "texts has no tokenizer.json"),
        (("name=a", "parameters=many"), "expected a number of parameters, got 'many'"),
        (("name=a", "parameters=-3M"), "expected a number of parameters, got"),
        (("name=a", "parameters=10k"), "parameters: 10,000 is too small"),
        (("name=a", "like=teuken7"), "like: unknown recipe: 'teuken7'"),
        (("name=a", "budget.seed=3"), "action=new does not accept recipe keys"),
    ],
)
def test_wrong_words_of_new_have_a_message(
    words: tuple[str, ...], said: str, home: Path, capfd: Said
) -> None:
    assert said in refused(capfd, *words)


def test_the_smallest_size_in_the_message_is_accepted(home: Path, capfd: Said) -> None:
    stderr = refused(capfd, "name=a", "data=texts/*.txt", "parameters=10k")
    new("data=texts/*.txt", stderr.split("write ")[1].split()[0])


def test_a_tokenizer_that_no_recipe_describes_is_refused(home: Path, capfd: Said) -> None:
    folder = home / "tok"
    engine = save_tokenizer(folder)
    engine.enable_truncation(8)
    engine.save(str(folder / "tokenizer.json"))
    assert "truncation enabled" in refused(capfd, "name=a", "tokenizer=tok")
    (folder / "tokenizer.model").touch()
    assert "a SentencePiece model" in refused(capfd, "name=a", "tokenizer=tok")
    (folder / "tokenizer.model").unlink()
    (folder / "tokenizer.json").write_text("{}")
    assert "is not a tokenizer" in refused(capfd, "name=a", "tokenizer=tok")
    words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    said = "WordLevel by Whitespace, not byte-level BPE"
    assert said in refused(capfd, "name=a", "tokenizer=tok")


def test_a_tokenizer_that_training_cannot_use_is_refused(home: Path, capfd: Said) -> None:
    file = home / "tok" / "tokenizer.json"
    for change, message in (
        (lambda tree: tree["model"]["vocab"].update(zzz=900), "has a gap in its ids"),
        (lambda tree: tree["model"]["vocab"].update(zzz=30), "id 30 for both"),
        (lambda tree: tree.update(normalizer={"type": "Lowercase"}), "the step Lowercase"),
        (lambda tree: tree["added_tokens"][0].update(lstrip=True), "removes the spaces"),
    ):
        save_tokenizer(home / "tok")
        tree = json.loads(file.read_text())
        change(tree)
        file.write_text(json.dumps(tree))
        assert message in refused(capfd, "name=a", "tokenizer=tok")


def test_tokenizer_without_document_end_is_refused(home: Path, capfd: Said) -> None:
    engine = ByteLevelBPETokenizer()
    engine.train_from_iterator([" ".join(WORDS)], 300, 1)
    (home / "tok").mkdir()
    engine.save(str(home / "tok" / "tokenizer.json"))
    assert "has no piece that ends a document" in refused(capfd, "name=a", "tokenizer=tok")
    config = home / "tok" / "tokenizer_config.json"
    config.write_text("{")
    assert "tokenizer_config.json: cannot be read" in refused(capfd, "name=a", "tokenizer=tok")
    config.write_text('{"eos_token": "e"}')
    said = "the id must be one of the first or last 256"
    assert said in refused(capfd, "name=a", "tokenizer=tok")
    added = Tokenizer.from_file(str(home / "tok" / "tokenizer.json"))
    added.add_special_tokens(["morning"])
    added.save(str(home / "tok" / "tokenizer.json"))
    config.write_text('{"eos_token": "morning"}')
    assert "'morning' is an added word" in refused(capfd, "name=a", "tokenizer=tok")


def test_like_accepts_a_recipe_of_the_user(home: Path) -> None:
    new("data=texts/*.txt", "file=first.yaml", "parameters=3M")
    (home / "inside").mkdir()
    new("data=texts/*.txt", "like=first.yaml", "file=inside/second.yaml", "parameters=2M")
    assert "- ../first.yaml" in (home / "inside" / "second.yaml").read_text("utf-8")
    counted = composed("inside/second.yaml").derived_numbers.parameters
    assert counted.total == pytest.approx(2e6, rel=0.1)


# One of each family: the others have other sizes alone.
FAMILIES = {re.split(r"\d", name)[0]: name for name in published_recipes()}


@pytest.mark.quick("teuken7b", "mula7b_a1b", "gpt3b6", "nemotron_h_8b")
@pytest.mark.parametrize("like", FAMILIES.values())
def test_like_keeps_architecture(like: str, home: Path) -> None:
    new(f"like={like}", "data=texts/*.txt", "parameters=20M")
    recipe = composed()
    theirs = compose_recipe(read_point([f"recipe={like}", "scale=full"]), anywhere=True)
    total = recipe.derived_numbers.parameters.total
    assert total == pytest.approx(20e6, rel=0.35)
    assert f"# {total:_} parameters" in (home / "recipes" / "mine.yaml").read_text("utf-8")
    kept = ("_target_", "tied_embeddings", "norm", "initialization", "embedding_norm")
    ours, model = to_plain(recipe.model), to_plain(theirs.model)
    stds = [tree["initialization"].pop("std") for tree in (ours, model)]
    assert stds[0] == stds[1] or stds[0] > stds[1]
    assert {key: ours[key] for key in kept} == {key: model[key] for key in kept}
    assert ours["positions"]["_target_"] == model["positions"]["_target_"]
    assert recipe.optimizer["_target_"] == theirs.optimizer["_target_"]
    assert recipe.schedule["_target_"] == theirs.schedule["_target_"]
    assert [*recipe.data.sources] == ["text"]
    assert not recipe.published
    assert not recipe.data.phases
    assert recipe.cluster.ranks == 1
