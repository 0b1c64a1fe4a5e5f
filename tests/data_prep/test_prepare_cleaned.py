"""Cleaned text becomes token files; the manifest lists stages and counts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command.main import main
from components.data.manifest import Manifest
from components.data.unigram import Unigram
from components.errors import RecipeError
from data_prep.stages.tokens import StagedTokenise
from data_prep.tokenise import LocalTokenise, Tokenise
from tests.cluster.programs import Programs
from tests.data_prep.corpora import (
    EXACT,
    LANGUAGES,
    MANY_TASKS,
    clean,
    prepare,
    runner_of,
    write_corpus,
)
from tests.data_prep.test_task import Elements
from tests.life.conftest import TINY

Prepare = Callable[..., tuple[Path, Manifest]]


@pytest.fixture
def tokenise(new_tokenizer: Callable[[int], Unigram], tmp_path: Path) -> Prepare:
    """Clean a small corpus and write its token files into ``root``."""
    sources = write_corpus(tmp_path / "texts")

    def act(how: Tokenise, *, root: str = "prepared", **changes: Any) -> tuple[Path, Manifest]:
        given = {key: changes.pop(key) for key in [*changes] if key.startswith("tokenizer")}
        cleaned = clean(sources, tmp_path / "stages", **changes)
        return prepare(
            sources=cleaned.sources,
            stages=cleaned.stages,
            tokenise=how,
            root=tmp_path / root,
            **{"tokenizer": new_tokenizer(700), **given},
        )

    return act


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_manifest_lists_stages_and_counts(tokenise: Prepare) -> None:
    folder, manifest = tokenise(LocalTokenise(), **EXACT)
    assert Manifest.from_folder(folder) == manifest
    assert [*manifest.stages] == ["clean", "duplicates", "keep"]
    for name in LANGUAGES:
        counts = manifest.stages["keep"].sources[name]
        assert manifest.sources[name].documents == counts.documents_out < counts.documents_in


def test_other_stages_give_another_folder_for_the_same_text(tokenise: Prepare) -> None:
    longest = {"read": {"invalid": "refuse", "longest_bytes": 1_000_000}}
    one, first = tokenise(LocalTokenise())
    two, second = tokenise(LocalTokenise(), **longest)
    assert first.sources == second.sources
    assert one.name != two.name


@pytest.mark.parametrize("executor", [None, Elements((0, 1, 2))])
def test_every_executor_writes_the_same_bytes(tokenise, tmp_path, executor):
    one, manifest = tokenise(LocalTokenise(), **MANY_TASKS)
    how = StagedTokenise(runner=runner_of(tmp_path / "tokens", executor=executor))
    two, same = tokenise(how, root="again", **MANY_TASKS)
    assert (one.name, manifest) == (two.name, same)
    assert contents(one) == contents(two)
    (folder,) = (tmp_path / "tokens").glob("tokens-*")
    assert len(list(folder.glob("*.train.tokens"))) > len(LANGUAGES)


def test_a_given_tokenizer_is_used_and_none_trained(tokenise: Prepare, tmp_path: Path) -> None:
    trained, manifest = tokenise(LocalTokenise())
    how = StagedTokenise(runner=runner_of(tmp_path / "tokens"))
    folder, again = tokenise(how, root="given", tokenizer_folder=str(trained))
    assert again.sources == manifest.sources
    assert not list((tmp_path / "tokens").glob("tokenizer-*"))
    given, original = (place / "tokenizer.model" for place in (folder, trained))
    assert given.read_bytes() == original.read_bytes()


def test_only_shards_without_tokens_are_done_again(tokenise: Prepare, tmp_path: Path) -> None:
    messages: list[str] = []
    how = StagedTokenise(runner=runner_of(tmp_path / "tokens", messages=messages))
    first, _ = tokenise(how, **MANY_TASKS)
    (folder,) = (tmp_path / "tokens").glob("tokens-*")
    (folder / "manifest.json").unlink()
    (folder / "000003.train.tokens").unlink()
    messages.clear()
    again, _ = tokenise(how, root="again", **MANY_TASKS)
    assert contents(again) == contents(first)
    assert messages[0].endswith(": already done")  # the tokenizer's training
    assert f"{folder.name}: 1 of " in messages[1]


def test_an_edited_token_file_of_a_shard_is_refused(tokenise: Prepare, tmp_path: Path) -> None:
    how = StagedTokenise(runner=runner_of(tmp_path / "tokens"))
    tokenise(how)
    (shard,) = (tmp_path / "tokens").glob("tokens-*/000001.train.tokens")
    shard.write_bytes(bytes(len(shard.read_bytes())))
    message = r"000001\.train\.tokens: was changed after its stage wrote it\n  delete"
    with pytest.raises(RecipeError, match=message):
        tokenise(how, root="again")
    assert list((tmp_path / "again").iterdir()) == []


def test_the_error_of_a_tokenizer_is_raised_by_its_stage(tokenise, new_tokenizer, tmp_path):
    for executor in (None, Elements((0,))):
        how = StagedTokenise(runner=runner_of(tmp_path / "tokens", executor=executor))
        with pytest.raises(RecipeError, match=r"tokenizer\.vocab_size: 50,000 pieces"):
            tokenise(how, tokenizer=new_tokenizer(50_000))


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write_corpus(tmp_path / "texts")
    files = ", ".join(f"{tmp_path}/texts/{name}*" for name in LANGUAGES)
    tiny = [word for word in TINY if not word.startswith("data.sources")]
    source = f"data.sources={{eu: {{files: [{files}], language: de}}}}"
    exact = "data.preparation.exact_duplicates={unit: document}"
    return [*tiny, source, exact, "preparation=plain", "action=prepare"]


def test_the_command_prints_a_table_of_stages(words, capsys):
    keep = "{keep: all, minimum_score: {default: 0.0}, lower_case: false, except_sources: []}"
    settings = ["data.preparation.workers=1", f"data.preparation.language={keep}"]
    assert main([*words, *settings]) == 0
    out = capsys.readouterr().out.splitlines()
    head, cleaned, kept = (line.split() for line in out[:3])
    assert head[:4] == ["stage", "source", "documents", "in"]
    assert cleaned[:4] == ["clean", "eu", cleaned[2], cleaned[2]]
    assert cleaned[5] == "de"
    assert kept[-2:] == ["exact", "duplicate"]
    assert int(kept[3]) == int(kept[2]) - int(kept[-3])
    manifest = json.loads((Path(out[3]) / "manifest.json").read_text())
    assert manifest["stages"]["keep"]["sources"]["eu"]["documents_out"] == int(kept[3])


def test_a_queued_preparation_is_reported_without_error(words, tmp_path, monkeypatch, capsys):
    (tmp_path / "programs").mkdir()
    programs = Programs(tmp_path / "programs")
    monkeypatch.setenv("PATH", programs.path)
    programs.add("sbatch", says="77\n")
    programs.add("squeue")
    queued = (
        *("cluster=juwels", "scale=mini", "cluster.device=cpu", "cluster.hardware=none"),
        *("cluster.nodes=1", "cluster.devices_per_node=1", "site.account=kitchen"),
        *("data.preparation.executor=array", "data.preparation.wait=false"),
    )
    assert main([*words, *queued]) == 0
    assert "77 is queued\n  repeat the command" in capsys.readouterr().out
