"""Clean text on its way into token files: what the manifest says of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command.main import main
from components.data.manifest import Manifest
from components.data.unigram import Unigram
from data_prep.prepare import prepare
from tests.cluster.programs import Programs
from tests.data_prep.corpora import EXACT, LANGUAGES, clean, write_corpus
from tests.life.conftest import TINY

Prepare = Callable[..., tuple[Path, Manifest]]


@pytest.fixture
def tokenise(new_tokenizer: Callable[[int], Unigram], tmp_path: Path) -> Prepare:
    """Clean a small corpus and write its token files."""
    sources = write_corpus(tmp_path / "texts")

    def act(workers: int, **changes: Any) -> tuple[Path, Manifest]:
        cleaned = clean(sources, tmp_path / "stages", **changes)
        return prepare(
            sources=cleaned.sources,
            stages=cleaned.stages,
            workers=workers,
            tokenizer=new_tokenizer(700),
            tokenizer_folder="none",
            root=tmp_path / f"prepared-{workers}",
            name="mix",
            held_out_fraction=0.1,
            tokenizer_sample_bytes="all",
            sequence_length=16,
            verify="contents",
            say=list[str]().append,
        )

    return act


def test_the_manifest_names_the_passes_their_keys_and_counts(tokenise: Prepare) -> None:
    folder, manifest = tokenise(1, **EXACT)
    assert Manifest.read(folder) == manifest
    assert [*manifest.stages] == ["clean", "duplicates", "keep"]
    for name in LANGUAGES:
        counts = manifest.stages["keep"].sources[name]
        assert manifest.sources[name].documents == counts.documents_out < counts.documents_in


def test_the_same_text_by_other_stages_is_another_folder(tokenise: Prepare) -> None:
    longest = {"read": {"invalid": "refuse", "longest_bytes": 1_000_000}}
    one, first = tokenise(1)
    two, second = tokenise(1, **longest)
    assert first.sources == second.sources
    assert one.name != two.name


def test_the_number_of_workers_changes_no_token(tokenise: Prepare) -> None:
    one, manifest = tokenise(1, **EXACT)
    two, same = tokenise(2, **EXACT)
    assert (one.name, manifest) == (two.name, same)
    for record in manifest.files():
        assert (one / record.name).read_bytes() == (two / record.name).read_bytes()


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


def test_the_command_prints_what_each_stage_did(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    language = (
        "{keep: all, minimum_score: {default: 0.0}, lower_case: false, except_sources: []}"
    )
    assert (
        main([*words, "data.preparation.workers=1", f"data.preparation.language={language}"])
        == 0
    )
    out = capsys.readouterr().out.splitlines()
    head, cleaned, kept = (line.split() for line in out[:3])
    assert head[:4] == ["stage", "source", "documents", "in"]
    assert cleaned[:4] == ["clean", "eu", cleaned[2], cleaned[2]]
    assert cleaned[5] == "de"
    assert kept[-2:] == ["exact", "duplicate"]
    assert int(kept[3]) == int(kept[2]) - int(kept[-3])
    manifest = json.loads((Path(out[3]) / "manifest.json").read_text())
    assert manifest["stages"]["keep"]["sources"]["eu"]["documents_out"] == int(kept[3])


def test_what_is_left_to_the_queue_is_said_and_is_no_error(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "programs").mkdir()
    programs = Programs(tmp_path / "programs")
    monkeypatch.setenv("PATH", programs.path)
    programs.add("sbatch", says="77\n")
    programs.add("squeue")
    queued = (
        *("cluster=juwels", "scale=mini", "cluster.device=cpu", "cluster.hardware=none"),
        *("cluster.nodes=1", "cluster.devices_per_node=1", "site.account=kitchen"),
        *("data.preparation.executor=slurm", "data.preparation.wait=false"),
    )
    assert main([*words, *queued]) == 0
    assert "77 is queued\n  the same command goes on" in capsys.readouterr().out
