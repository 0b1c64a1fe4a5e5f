import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

from components.config.schema.data import Source
from components.data.byte_bpe import ByteBPE
from components.data.manifest import Manifest
from components.data.megatron import write_index
from components.data.mixture import windows_per_source
from components.data.order import Phase, SampleOrder
from components.data.samples import HeldOutWindows, PackedSamples
from components.data.token_file import OpenFiles, ShardedTokens
from components.errors import RecipeError
from data_prep.tokenise import (
    held_out_documents,
    open_token_source,
    sample_texts,
    write_megatron,
)
from tests.components.data.engines import declare_engine, train_engine
from tests.data_prep.corpora import prepare

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "megatron"


class Declared:
    """A tokenizer that is declared and never loaded."""

    vocab_size, eod_id = 1000, 1

    def get_settings(self):
        return {"vocab_size": 1000}


def run(root: Path, messages: list[str] | None = None, **changes):
    sources = {"mine": Source(tokens=(str(GOLDEN / "uint16_whole"),))}
    arguments = {"sources": sources, "tokenizer": Declared(), "held_out_fraction": 0.3}
    return prepare(messages=messages, root=root, sequence_length=4, **{**arguments, **changes})


def golden(name: str) -> list[list[int]]:
    documents = json.loads((GOLDEN / f"{name}.json").read_text())
    return [[token for part in document for token in part] for document in documents]


def flat(documents) -> list[int]:
    return [token for document in documents for token in document]


def read_all(folder, records):
    files = OpenFiles(folder=folder, most_open=1)
    return ShardedTokens(records=records, files=files).read_tokens(0, 1 << 40).tolist()


def test_documents_are_split_in_order_and_not_copied(tmp_path):
    messages: list[str] = []
    folder, manifest = run(tmp_path, messages)
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]
    record, documents = manifest.sources["mine"], golden("uint16_whole")
    assert len(documents) == 7
    assert read_all(folder, record.train) == flat(documents[:5])
    assert read_all(folder, record.held_out) == flat(documents[5:])
    assert (record.documents, record.train[0].documents) == (7, 5)
    content = (GOLDEN / "uint16_whole.bin").read_bytes()
    assert record.train[0].sha256 == hashlib.sha256(content).hexdigest()
    assert messages[0] == "tokenizer: none; 1,000 ids, 1 ends texts"
    assert Manifest.from_folder(folder) == manifest


def test_windows_span_the_files_of_a_pattern(tmp_path):
    for name in ("x0", "x1"):
        for suffix in (".bin", ".idx"):
            shutil.copy(GOLDEN / f"uint16_whole{suffix}", tmp_path / f"{name}{suffix}")
    source = Source(tokens=(f"{tmp_path}/x*",))
    folder, manifest = run(tmp_path / "prepared", sources={"mine": source})
    documents = golden("uint16_whole")
    joined = flat(documents[:5]) * 2
    phase = Phase(first_sample=0, shares={"mine": 1.0}, path="data.shares")
    windows = windows_per_source(manifest, 4)
    order = SampleOrder(phases=[phase], samples=windows, seed=0)
    samples = PackedSamples(folder=folder, manifest=manifest, order=order, sequence_length=4)
    read = {
        samples.sample_id(position).index: samples[position].tolist()
        for position in range(windows["mine"])
    }
    assert read == {k: joined[4 * k : 4 * k + 5] for k in range((len(joined) - 1) // 4)}
    held_out = HeldOutWindows(
        folder=folder, manifest=manifest, sequence_length=4, max_windows=9
    )
    assert next(held_out.iter_windows("mine")).tolist() == flat(documents[5:])[:5]


@pytest.mark.parametrize(
    ("documents", "fraction", "held_out"),
    [(7, 0.3, 2), (1000, 0.05, 50), (10, 0.001, 1), (2, 0.9, 1), (1, 0.5, 0), (0, 0.5, 0)],
)
def test_some_but_never_all_documents_are_held_out(documents, fraction, held_out):
    assert held_out_documents(documents, fraction) == held_out


def edited(tmp_path: Path, change) -> Source:
    """Copy the golden files and change one token in place."""
    tokens = np.fromfile(GOLDEN / "uint16_whole.bin", np.uint16)
    change(tokens)
    tokens.tofile(tmp_path / "a.bin")
    shutil.copy(GOLDEN / "uint16_whole.idx", tmp_path / "a.idx")
    return Source(tokens=(str(tmp_path / "a"),))


def test_an_id_outside_the_vocabulary_is_refused_with_its_place(tmp_path):
    source = edited(tmp_path, lambda tokens: tokens.__setitem__(9, 1000))
    message = r"a\.bin has id 1,000 at token 9, the largest id is 999\n  set tokenizer"
    with pytest.raises(RecipeError, match=message):
        run(tmp_path, sources={"mine": source})


def test_a_document_without_an_end_is_refused_unless_configured(tmp_path, monkeypatch):
    monkeypatch.setattr("data_prep.tokenise.BLOCK_TOKENS", 2)  # several blocks
    end = len(flat(golden("uint16_whole")[:4])) - 1
    source = edited(tmp_path, lambda tokens: tokens.__setitem__(end, 7))
    message = r"document 3 of .*a\.bin ends with id 7, .* id 1\n  .*sources\.mine\.eod=absent"
    with pytest.raises(RecipeError, match=message):
        run(tmp_path, sources={"mine": source})
    absent = source.model_copy(update={"eod": "absent"})
    folder, manifest = run(tmp_path, sources={"mine": absent})
    assert 7 in read_all(folder, manifest.sources["mine"].train)


def test_files_of_empty_documents_alone_have_nothing_to_train_on(tmp_path):
    shutil.copy(GOLDEN / "uint16.idx", tmp_path / "a.idx")
    head = (tmp_path / "a.idx").read_bytes()[:18]
    borders = np.array([0, 1, 1, 2], np.int64).tobytes()
    counts = np.array([2, 4], np.uint64).tobytes()
    (tmp_path / "a.idx").write_bytes(head + counts + bytes(2 * 4 + 2 * 8) + borders)
    (tmp_path / "a.bin").touch()
    with pytest.raises(RecipeError, match=r"sources\.mine: has 0 training tokens"):
        run(tmp_path, sources={"mine": Source(tokens=(str(tmp_path / "a"),))})


def test_empty_documents_need_no_end(tmp_path):
    source = Source(tokens=(str(GOLDEN / "uint16.idx"),))
    folder, manifest = run(tmp_path, sources={"mine": source})
    assert read_all(folder, manifest.sources["mine"].train) == flat(golden("uint16")[:6])


def test_an_edited_file_is_named_only_if_contents_are_compared(tmp_path):
    source = edited(tmp_path, lambda tokens: None)
    run(tmp_path, sources={"mine": source})
    edited(tmp_path, lambda tokens: tokens.__setitem__(3, 5))
    run(tmp_path, sources={"mine": source}, verify="sizes")
    with pytest.raises(RecipeError, match=r"a\.bin: was changed"):
        run(tmp_path, sources={"mine": source})


@pytest.mark.parametrize("suffix", ["", ".idx", ".bin"])
def test_either_file_may_be_named_for_both(suffix):
    source = open_token_source("mine", Source(tokens=(f"{GOLDEN}/uint16{suffix}",)))
    assert [index.bin_file for index in source.indices] == [GOLDEN / "uint16.bin"]


def test_a_pattern_without_an_index_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"mine\.tokens: no file matches .*/x\*\.idx"):
        open_token_source("mine", Source(tokens=(f"{tmp_path}/x*",)))


def test_prepared_files_are_written_for_megatron_and_read(tmp_path, sources, tokenizer):
    texts = {"first": sources["first"]}
    folder, manifest = run(tmp_path, sources=texts, tokenizer=tokenizer)
    prefixes = write_megatron(folder, manifest)
    assert [prefix.name for prefix in prefixes] == ["first.train", "first.held_out"]
    assert write_megatron(folder, manifest) == prefixes  # again, in place
    source = open_token_source("again", Source(tokens=(f"{folder}/first.train",)))
    ids = {"vocab_size": tokenizer.vocab_size, "eod_id": tokenizer.eod_id}
    measured = source.measure_files(fraction=0.1, **ids)
    (ours,) = manifest.sources["first"].train
    assert measured.documents == ours.documents
    assert {record.sha256 for record in (*measured.train, *measured.held_out)} == {ours.sha256}
    assert (folder / "first.train.bin").samefile(folder / "first.train.tokens")


def test_tokens_are_copied_without_hard_links(tmp_path, sources, tokenizer, monkeypatch):
    def refuse(*_):
        raise PermissionError("no links here")

    folder, manifest = run(tmp_path, sources={"f": sources["first"]}, tokenizer=tokenizer)
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    write_megatron(folder, manifest)
    written = (folder / "f.train.bin").read_bytes()
    assert written == (folder / "f.train.tokens").read_bytes()
    assert not list(folder.glob(".*"))


def test_text_is_encoded_by_a_given_tokenizer(tmp_path, sources, tokenizer, new_tokenizer):
    texts = {"first": sources["first"]}
    trained, manifest = run(tmp_path / "a", sources=texts, tokenizer=tokenizer)
    messages: list[str] = []
    fresh = new_tokenizer(tokenizer.vocab_size)
    given, again = run(
        tmp_path / "b", messages, sources=texts, tokenizer=fresh, tokenizer_folder=str(trained)
    )
    assert not any(line.startswith("tokenizer:") for line in messages)
    assert again.sources["first"].train == manifest.sources["first"].train
    assert again.tokenizer.files == manifest.tokenizer.files
    assert given.name != trained.name


def test_a_folder_lacking_the_tokenizer_is_refused(tmp_path, sources, tokenizer, new_tokenizer):
    texts = {"first": sources["first"]}
    with pytest.raises(RecipeError, match=r"tokenizer_folder: .* none of tokenizer\.json"):
        run(tmp_path, sources=texts, tokenizer=tokenizer, tokenizer_folder=str(tmp_path))
    trained, _ = run(tmp_path / "a", sources=texts, tokenizer=tokenizer)
    other = new_tokenizer(tokenizer.vocab_size + 7)
    message = r"tokenizer_folder: the tokenizer in .* differs: has 570 pieces"
    with pytest.raises(RecipeError, match=message):
        run(tmp_path / "b", sources=texts, tokenizer=other, tokenizer_folder=str(trained))


def test_a_lossy_tokenizer_is_refused_with_the_reason(tmp_path, sources):
    engine = train_engine("", 257, prefix=True)
    engine.normalizer = normalizers.Lowercase()
    engine.save(str(tmp_path / "tokenizer.json"))
    tokenizer = ByteBPE(**declare_engine(engine))
    message = r"tokenizer_folder: the tokenizer in .* has the step Lowercase.*\n.*use a byte"
    texts = {"first": sources["first"]}
    with pytest.raises(RecipeError, match=message):
        run(tmp_path / "a", sources=texts, tokenizer=tokenizer, tokenizer_folder=str(tmp_path))


def test_negative_ids_are_refused(tmp_path):
    np.array([5, -3, 1], np.int32).tofile(tmp_path / "a.bin")
    write_index(tmp_path / "a", np.array([5, 9, 1], np.int32), "int32", eod_id=1)
    with pytest.raises(RecipeError, match=r"a\.bin has id -3 at token 1"):
        run(tmp_path, sources={"mine": Source(tokens=(str(tmp_path / "a"),))})


@given(st.lists(st.text()), st.integers(0, 500))
def test_the_sample_respects_its_size(texts, sample_bytes):
    sample = sample_texts(texts, sample_bytes)
    assert sum(len(piece.encode()) for piece in sample) <= sample_bytes


def test_a_small_text_is_taken_whole_and_a_large_one_sampled_everywhere():
    assert sorted(sample_texts(["b\nc", "a"], 1000)) == ["a", "b\nc"]
    lines = [f"line {number:06d} " + "x" * 100 for number in range(5000)]
    sample = "\n".join(sample_texts(["\n".join(lines)], 50_000))
    numbers = sorted(int(line.split()[1]) for line in sample.split("\n"))
    assert 48_000 < len(sample) <= 50_000
    assert numbers[0] < 500
    assert numbers[-1] > 4500


def test_the_order_of_the_documents_has_no_effect():
    texts = [f"document {number}" * 50 for number in range(100)]
    assert sample_texts(texts, 9000) == sample_texts(texts[::-1], 9000)
