"""``action=new`` writes a recipe that composes as it stands, or says what is in the way."""

import gzip
import json
import re
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard
from omegaconf import OmegaConf
from tokenizers import ByteLevelBPETokenizer, Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from benchmarks.recipes import published_recipes
from command.arguments import read_point
from command.compose import compose_group, compose_recipe
from command.main import main
from command.new_recipe.material import as_pattern, find_text, split_list
from command.new_recipe.page import as_comment, in_line
from command.new_recipe.sizes import choose_shape, choose_sizes
from command.recipe.recipe_file import check_content
from components.config.schema.recipe import Recipe
from components.config.schema.types import thaw
from data_prep.read import LocalFile
from data_prep.sources import find_inputs, open_files

WORDS = ("the", "miller", "carries", "flour", "over", "a", "bridge", "every", "morning", "and")
FAMILY = "llama_125m"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with ten texts; a clone's recipes lie in it, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("command.actions.new.ROOT", tmp_path)
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


def refused(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    before = sorted(Path.cwd().rglob("*"))
    assert main(["action=new", *words]) == 2
    assert sorted(Path.cwd().rglob("*")) == before
    return capfd.readouterr().err


def test_it_writes_one_file_that_trains_on_the_text_at_its_own_size(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {*home.rglob("*")}
    new("data=texts/*.txt")
    file = home / "recipes" / "mine.yaml"
    assert {*home.rglob("*")} - before == {file.parent, file}
    out, err = capfd.readouterr()
    assert out == f"{file}\n"
    assert "train it: python run.py recipe=mine" in err
    recipe = composed()
    assert (recipe.name, recipe.home) == ("mine", "local")
    assert recipe.data.sources["text"].files == ("texts/*.txt",)
    assert dict(recipe.data.shares) == {"text": 1.0}
    assert recipe.data.tokenizer_folder == "none"
    assert recipe.tokenizer["vocab_size"] == recipe.shape.vocab_size == 384
    assert recipe.derived.parameters.total == pytest.approx(1e6, rel=0.1)
    assert recipe.cluster.ranks == 1


def test_every_number_that_was_chosen_stands_beside_its_reason(home: Path) -> None:
    new("data=texts/*.txt", "parameters=2M")
    page = (home / "recipes" / "mine.yaml").read_text("utf-8")
    for source in ("2203.15556", "2305.16264", "2005.14165", "2401.02954", "2002.05202"):
        assert f"arXiv {source}" in page
    assert "asked for" in page
    assert "`python run.py action=new name=mine 'data=texts/*.txt' parameters=2M`" in page
    assert all(len(line) < 140 for line in page.splitlines())
    assert len(page.splitlines()) < 70


def test_the_folder_of_a_tokenizer_decides_vocabulary_and_end_of_document(home: Path) -> None:
    engine = save_tokenizer(home / "mine_tok")
    saved = PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="<|endoftext|>")
    saved.save_pretrained(home / "mine_tok")  # with a longest text of 31 digits
    new("data=texts/*.txt", "tokenizer=mine_tok")
    recipe = composed()
    assert recipe.data.tokenizer_folder == "mine_tok"
    assert recipe.tokenizer["vocab_size"] == engine.get_vocab_size() == recipe.shape.vocab_size
    assert recipe.tokenizer["eod"] == "<|endoftext|>"
    assert list(recipe.tokenizer["first_pieces"]) == ["<|endoftext|>"]
    assert recipe.shape.padded_vocab_size % 64 == 0


def test_the_end_of_a_document_may_be_the_last_piece_and_is_the_one_that_is_named(
    home: Path,
) -> None:
    engine = save_tokenizer(home / "tok")
    engine.add_special_tokens(["<stop>", "<pad>"])
    engine.save(str(home / "tok" / "tokenizer.json"))
    named = {"eos_token": {"content": "<stop>"}}
    (home / "tok" / "tokenizer_config.json").write_text(json.dumps(named))
    new("data=texts/*.txt", "tokenizer=tok")
    recipe = composed()
    assert list(recipe.tokenizer["last_pieces"]) == ["<stop>", "<pad>"]
    assert recipe.tokenizer["eod"] == "<stop>"


def test_each_pattern_is_a_source_and_all_are_read_in_proportion_to_their_tokens(
    home: Path,
) -> None:
    for language in ("de", "no"):  # the second is a boolean where YAML is not quoted
        write_texts(home / language)
    new("data=[de/*.txt,no/*.txt,texts/0.txt,texts/1.txt]")
    recipe = composed()
    assert [*recipe.data.sources] == ["de", "no", "0", "1"]
    assert recipe.data.mixture == "natural"
    assert not recipe.data.shares


HOSTILE = (
    *("1e3.txt", "true.txt", "null.txt", "no.txt", "01.txt", "0x10.txt", "1_0.txt", "~.txt"),
    *(
        "a.b.txt",
        "-x.txt",
        "\u00fcn\u00ef.txt",
        "\U0001f600.txt",
        "a'b.txt",
        'a"b.txt',
        "a: b.txt",
    ),
    *("{a}.txt", "[a].txt", "*.txt", "${x}.txt", "${oc.env:HOME}.txt", "a,b.txt", "a b .txt"),
    *(
        "#a.txt",
        " #a.txt",
        "a\nb.txt",
        "%s.txt",
        "a\\b.txt",
        "{{ a }}.txt",
        "~root.txt",
        "&a.txt",
    ),
)


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_pattern_is_written_so_that_a_recipe_names_the_same_file(
    name: str, home: Path
) -> None:
    (home / name).write_text("text")
    for words in (name, f"'{name}'" if '"' in name else f'["{name}"]'):
        (pattern,) = split_list(words)
        tree = {"data": {"sources": {"a": {"files": [as_pattern(pattern)]}}}}
        page = f"# {as_comment(name)}\n{in_line(tree)[1:-1]}\n"
        (home / "r.yaml").write_text(page, "utf-8")
        read = yaml.safe_load(page)
        check_content(read)
        files = OmegaConf.to_container(OmegaConf.load(home / "r.yaml"), resolve=True)
        assert files == read
        found = open_files(tuple(read["data"]["sources"]["a"]["files"]), "data", "text")
        assert [file.path.name for file in found] == [name]


def test_files_with_hostile_names_become_sources_of_a_recipe_that_composes(home: Path) -> None:
    text = (home / "texts" / "0.txt").read_text("utf-8")
    names = [name for name in HOSTILE if '"' not in name]
    for number, name in enumerate(names):
        (home / name).write_text(f"{number} {text}", "utf-8")
    new("data=[{}]".format(",".join(f'"{name}"' for name in names)))
    recipe = composed()
    sources = [find_inputs(name, source) for name, source in recipe.data.sources.items()]
    assert [one.path.name for (one,) in sources if isinstance(one, LocalFile)] == names
    assert {"1e3", "true", "null", "no", "01", "0x10"} <= {*recipe.data.sources}


@pytest.mark.parametrize("name", ["1e3", "no", "null", "0x10", "1_0"])
def test_a_name_that_yaml_reads_as_another_thing_is_quoted(name: str, home: Path) -> None:
    assert main(["action=new", f"name='{name}'", "data=texts/*.txt"]) == 0
    assert composed(f"recipes/{name}.yaml").name == name


@pytest.mark.parametrize("name", ["a\x07b.txt", "a\u2028b.txt", "a\x85b.txt", "a\u202eb.txt"])
def test_a_name_that_no_recipe_can_hold_is_refused(
    name: str, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (home / name).write_text("text " * 10_000)
    err = refused(capfd, "name=a", f"data={name}")
    assert "data: 'a\\" in err
    assert "has a character that no recipe may hold" in err


def test_a_name_that_is_not_utf8_is_refused(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (home / "bad\udcff.txt").write_text("text " * 10_000)
    assert "is not UTF-8" in refused(capfd, "name=a", "data=bad*.txt")
    assert "is not UTF-8" in refused(capfd, "name=a", "data=bad\udcff.txt")


def write_records(file: Path, *names: str) -> None:
    lines = (home.read_text("utf-8") for home in sorted(Path("texts").iterdir()))
    file.write_text(
        "\n".join(json.dumps({**dict.fromkeys(names, text), "id": 1}) for text in lines)
    )


def test_the_field_that_holds_the_text_is_found(home: Path) -> None:
    write_records(home / "a.jsonl", "text", "url")
    write_records(home / "b.jsonl", "content")
    new("data=[a.jsonl,b.jsonl,texts/*.txt]")
    sources = composed().data.sources
    assert [sources[name].column for name in ("a", "b", "texts")] == ["text", "content", "text"]


def test_a_field_that_is_named_is_taken_where_it_is(home: Path) -> None:
    write_records(home / "a.jsonl", "text", "body")
    write_records(home / "b.jsonl", "text")
    new("data=[a.jsonl,b.jsonl]", "column=body")
    sources = composed().data.sources
    assert [sources[name].column for name in ("a", "b")] == ["body", "text"]


def test_fields_of_which_each_may_be_the_text_are_listed(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_records(home / "a.jsonl", "title", "body")
    err = refused(capfd, "name=a", "data=a.jsonl")
    assert "column: a.jsonl has text in title, body\n" in err
    assert "column=NAME" in err
    assert "no record of data= has text in 'bod'" in refused(
        capfd, "name=a", "data=texts/*.txt", "column=bod"
    )
    assert "no text is named" in refused(capfd, "name=a", "column=bod")
    write_records(home / "b.jsonl", "content")
    assert "?.jsonl has text in title, body, content" in refused(
        capfd, "name=a", "data=?.jsonl"
    )


def test_empty_files_are_skipped_and_counted(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in "abcde":
        (home / "texts" / f"{name}.txt").write_text(" \n")
    new("data=texts/*.txt")
    said = capfd.readouterr().err
    assert "skipped 5 without text: texts/a.txt, texts/b.txt, texts/c.txt, ..." in said


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow", ".md.gz"])
def test_the_size_of_a_text_does_not_depend_on_its_format(suffix: str, home: Path) -> None:
    texts = [file.read_text("utf-8") for file in sorted((home / "texts").iterdir())]
    records = "\n".join(json.dumps({"text": text, "more": [1] * 500}) for text in texts)
    if suffix == ".parquet":
        pq.write_table(pa.table({"text": texts}), home / "a.parquet")
    elif suffix == ".arrow":
        datasets.disable_progress_bars()
        datasets.Dataset.from_dict({"text": texts}).save_to_disk(home / "a.arrow")
    elif suffix == ".jsonl.zst":
        (home / "a.jsonl.zst").write_bytes(zstandard.compress(records.encode()))
    else:
        content = records if suffix == ".jsonl.gz" else "\n".join(texts)
        (home / f"a{suffix}").write_bytes(gzip.compress(content.encode()))
    expected = sum(len(text.encode()) for text in texts)
    assert find_text(f"a{suffix}").num_bytes == pytest.approx(expected, abs=10)


def test_a_text_beyond_what_is_counted_is_estimated(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = find_text("texts/*.txt").num_bytes
    one = (home / "long.txt").write_bytes(b"text of 20 characters\n\n" * 9_000)
    monkeypatch.setattr("command.new_recipe.material.COUNTED_BYTES", 10_000)
    monkeypatch.setattr("command.new_recipe.material.SAMPLE_BYTES", 5_000)
    assert find_text("texts/*.txt").num_bytes == pytest.approx(whole, rel=0.1)
    text = find_text("long.txt")
    assert text.num_bytes == pytest.approx(one * 21 / 23, rel=0.01)
    assert not text.whole
    assert sum(len(document.text) for document in text.sample) <= 5_021


def test_the_passes_that_are_promised_are_those_of_the_run(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    new("data=texts/*.txt")
    recipe = composed()
    page = (home / "recipes" / "mine.yaml").read_text("utf-8")
    (promised,) = re.findall(r"reads yours (\S+) times", page)
    assert main(["action=prepare", "recipe=recipes/mine.yaml", "scale=full"]) == 0
    said = capfd.readouterr().err
    (tokens,) = re.findall(r"text: ([\d,]+) tokens to train on", said)
    passes = recipe.budget.total_tokens / int(tokens.replace(",", ""))
    assert passes == pytest.approx(float(promised), rel=0.05)
    assert passes <= 4.1


def test_text_elsewhere_is_named_by_its_whole_path(
    home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("scratch") / "texts"
    write_texts(folder)
    monkeypatch.setattr("command.recipe.own_places.private_folder", lambda: home)
    new(f"data={folder}/*.txt")
    tree = yaml.safe_load((home / "recipes" / "mine.yaml").read_text("utf-8"))
    assert tree["data"]["sources"]["text"]["files"] == [f"{folder}/*.txt"]
    assert tree["why"].endswith(", on *.txt.")  # a card is published, and quotes it


def test_a_recipe_that_would_not_be_trusted_with_its_text_is_not_written(
    home: Path, tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("scratch") / "texts"
    write_texts(folder)
    err = refused(capfd, "name=a", f"data={folder}/*.txt", "file=here.yaml")
    assert "here.yaml is in no place of your own" in err
    assert "leave file= out" in err


def test_without_text_the_standard_library_stands_in(home: Path) -> None:
    new()
    sources = composed().data.sources
    assert {source.embedded for source in sources.values()} == {"python/source", "python/docs"}


def test_a_file_elsewhere_is_a_recipe_that_runs_by_its_path(home: Path) -> None:
    new("data=texts/*.txt", "file=here.yaml")
    assert not (home / "recipes").exists()
    assert composed("here.yaml").name == "mine"


def test_nothing_is_written_over_a_file_that_exists(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (home / "mine.yaml").write_text("mine: it was here")
    assert "mine.yaml is there already" in refused(capfd, "name=a", "file=mine.yaml")
    assert (home / "mine.yaml").read_text() == "mine: it was here"


def test_a_file_that_comes_while_it_writes_is_left_alone(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def come(*_: object) -> None:
        (home / "recipes" / "mine.yaml").write_text("mine: it came")

    monkeypatch.setattr("command.actions.new.check_composes", come)
    assert main(["action=new", "name=mine"]) == 2
    assert "is there already" in capfd.readouterr().err
    assert [one.read_text() for one in (home / "recipes").iterdir()] == ["mine: it came"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("data=texts/*.txt",), "name: the recipe has none"),
        (("name=My-Model",), "name: 'My-Model' is no name"),
        (("name=teuken7b",), "there is a recipe 'teuken7b' already"),
        (("name=a", "file=a.yml"), "a.yml does not end in .yaml"),
        (("name=a", "data=nothing/*.txt"), "data: nothing/*.txt names no file"),
        (("name=a", "data="), "data: no file is named"),
        (("name=a", "data=texts"), "data: texts is a folder"),
        (("name=a", "data=texts/0.txt"), "files of 2,"),
        (("name=a", "data=[texts/*.txt,texts/0.txt]"), "texts/0.txt is named twice"),
        (("name=a", "tokenizer=nothing"), "tokenizer: there is no folder nothing"),
        (("name=a", "tokenizer=texts"), "texts holds no tokenizer.json"),
        (("name=a", "parameters=many"), "'many' is no number of parameters"),
        (("name=a", "parameters=-3M"), "is no number of parameters"),
        (("name=a", "parameters=10k"), "parameters: 10,000 are too few"),
        (("name=a", "like=teuken7"), "like: there is no recipe 'teuken7'"),
        (("name=a", "budget.seed=3"), "a new recipe says the rest itself"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(
    words: tuple[str, ...], said: str, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capfd, *words)


def test_the_size_that_is_offered_for_one_that_is_too_small_is_taken(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    err = refused(capfd, "name=a", "data=texts/*.txt", "parameters=10k")
    offered = err.split("write ")[1].split()[0]
    new("data=texts/*.txt", offered)


def test_a_tokenizer_that_no_recipe_describes_is_refused(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = home / "tok"
    engine = save_tokenizer(folder)
    engine.enable_truncation(8)
    engine.save(str(folder / "tokenizer.json"))
    assert "truncation switched on" in refused(capfd, "name=a", "tokenizer=tok")
    (folder / "tokenizer.model").touch()
    assert "a SentencePiece model" in refused(capfd, "name=a", "tokenizer=tok")
    (folder / "tokenizer.model").unlink()
    (folder / "tokenizer.json").write_text("{}")
    assert "is not a tokenizer" in refused(capfd, "name=a", "tokenizer=tok")
    words = Tokenizer(models.WordLevel(unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(WORDS, trainer=trainers.WordLevelTrainer(special_tokens=["?"]))
    words.save(str(folder / "tokenizer.json"))
    assert "WordLevel by Whitespace, not byte-level BPE" in refused(
        capfd, "name=a", "tokenizer=tok"
    )


def test_a_tokenizer_without_an_end_of_document_is_refused_and_told_how_to_name_one(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = ByteLevelBPETokenizer()
    engine.train_from_iterator([" ".join(WORDS)], 300, 1)
    (home / "tok").mkdir()
    engine.save(str(home / "tok" / "tokenizer.json"))
    err = refused(capfd, "name=a", "tokenizer=tok")
    assert "names no piece that ends a document" in err
    config = home / "tok" / "tokenizer_config.json"
    config.write_text("{")
    assert "tokenizer_config.json: cannot be read" in refused(capfd, "name=a", "tokenizer=tok")
    config.write_text('{"eos_token": "e"}')
    assert "it has to be one of the first or last 256" in refused(
        capfd, "name=a", "tokenizer=tok"
    )


@pytest.mark.parametrize("parameters", ["15m", "60m", "125m", "350m", "1b"])
def test_the_family_has_the_shapes_that_the_rules_choose(parameters: str) -> None:
    base = compose_group("model", FAMILY)
    model = compose_group("model", f"llama_{parameters}")
    number = float(parameters[:-1]) * (1e9 if parameters.endswith("b") else 1e6)
    shape = choose_shape(base, round(number), 32_000)
    for key, value in shape.items():
        found = {k: model[key][k] for k in value} if isinstance(value, dict) else model[key]
        assert found == value, key


def test_a_short_text_is_read_four_times_and_a_long_one_as_often_as_the_size_wants() -> None:
    model = compose_group("model", FAMILY)
    short = choose_sizes(model, text_tokens=100_000, pieces=1_024, parameters=10_000_000)
    assert 3.5 < short.epochs <= 4
    assert short.total_tokens < short.wanted_tokens
    long = choose_sizes(model, text_tokens=10**10, pieces=32_768, parameters=125_000_000)
    assert long.total_tokens == pytest.approx(2.5e9, rel=0.01)
    chosen = choose_sizes(model, text_tokens=10**8, pieces=32_768, parameters=None)
    assert chosen.parameters == pytest.approx(10**8 * 4 / 20, rel=0.1)
    assert long.lr < chosen.lr == short.lr  # below what was fitted it stays
    for sizes in (short, long, chosen):
        assert sizes.batch_tokens % sizes.sequence_length == 0
        assert sizes.total_tokens % sizes.batch_tokens == 0
        assert 0 < sizes.warmup_tokens < sizes.total_tokens


def test_a_recipe_of_ones_own_may_be_what_a_new_one_is_like(home: Path) -> None:
    new("data=texts/*.txt", "file=first.yaml", "parameters=3M")
    (home / "inside").mkdir()
    new("data=texts/*.txt", "like=first.yaml", "file=inside/second.yaml", "parameters=2M")
    assert "- ../first.yaml" in (home / "inside" / "second.yaml").read_text("utf-8")
    assert composed("inside/second.yaml").derived.parameters.total == pytest.approx(
        2e6, rel=0.1
    )


RECIPES = published_recipes()


@pytest.mark.quick("teuken7b", "mula7b_a1b", "gpt3b6")
@pytest.mark.parametrize("like", RECIPES)
def test_like_keeps_the_architecture_and_changes_size_text_and_tokenizer(
    like: str, home: Path
) -> None:
    new(f"like={like}", "data=texts/*.txt", "parameters=20M")
    recipe = composed()
    theirs = compose_recipe(read_point([f"recipe={like}", "scale=full"]), anywhere=True)
    total = recipe.derived.parameters.total
    assert total == pytest.approx(20e6, rel=0.35)
    assert f"# {total:_} parameters" in (home / "recipes" / "mine.yaml").read_text("utf-8")
    kept = ("_target_", "tied_embeddings", "norm", "initialization", "embedding_norm")
    ours, model = thaw(recipe.model), thaw(theirs.model)
    assert {key: ours[key] for key in kept} == {key: model[key] for key in kept}
    assert ours["positions"]["_target_"] == model["positions"]["_target_"]
    assert recipe.optimizer["_target_"] == theirs.optimizer["_target_"]
    assert recipe.schedule["_target_"] == theirs.schedule["_target_"]
    assert [*recipe.data.sources] == ["text"]
    assert not recipe.published
    assert not recipe.data.phases
    assert recipe.cluster.ranks == 1
