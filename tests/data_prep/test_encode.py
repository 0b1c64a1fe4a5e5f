import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from tokenizers import Tokenizer as Engine

from components.data.token_file import open_token_file
from data_prep import encode as module
from data_prep.encode import encode
from tests.components.data import test_byte_bpe as byte_bpe
from tests.data_prep.conftest import make_paragraphs, make_tokenizer

REPOSITORY = Path(__file__).resolve().parents[2]
KILLED = """
import sys
import time
from pathlib import Path
from data_prep.encode import encode
from tests.data_prep.conftest import make_tokenizer

def texts():
    for _ in range(8):
        yield "abc " * (1 << 16)
    sys.stdout.write("going\\n")
    sys.stdout.flush()
    time.sleep(60)

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    tokenizer = make_tokenizer()
    tokenizer.load(folder)
    encode(folder / "a.tokens", texts(), tokenizer, workers=2)
"""


@pytest.fixture(scope="module")
def texts():
    draw = random.Random(1)
    paragraphs = make_paragraphs(400, "abcdeäß", seed=1)
    return ["\n".join(draw.choices(paragraphs, k=draw.randint(0, 8))) for _ in range(300)]


@pytest.fixture(scope="module")
def unigram(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("unigram")
    tokenizer = make_tokenizer()
    tokenizer.train(texts, folder)
    return tokenizer, folder


def expected_file(ids_of_texts, eod_id):
    ids = [token for ids in ids_of_texts for token in [*ids, eod_id]]
    return hashlib.sha256(np.array(ids, "<u2").tobytes()).hexdigest()


def test_the_ids_are_sentencepiece_s_own(tmp_path, unigram, texts):
    tokenizer, folder = unigram
    record = encode(tmp_path / "a", iter(texts), tokenizer, workers=1)
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    assert record.sha256 == expected_file(map(model.encode, texts), tokenizer.eod_id)
    assert record.documents == len(texts)
    assert len(open_token_file(tmp_path, record)) == record.tokens


def test_the_ids_are_the_byte_level_engine_s_own(tmp_path, texts):
    tokenizer = byte_bpe.make("bpe_neox_dolma")
    tokenizer.train(texts, tmp_path)
    engine = Engine.from_file(str(tmp_path / "tokenizer.json"))
    expected = (engine.encode(text, add_special_tokens=False).ids for text in texts)
    record = encode(tmp_path / "a", iter(texts), tokenizer, workers=2)
    assert record.sha256 == expected_file(expected, tokenizer.eod_id)


def test_the_file_is_the_same_for_any_workers_and_batches(
    tmp_path, unigram, texts, monkeypatch
):
    tokenizer, _ = unigram
    records = set()
    for workers, batch_characters in ((1, 1 << 20), (1, 1), (2, 5_000), (3, 20_000)):
        monkeypatch.setattr(module, "BATCH_CHARACTERS", batch_characters)
        records.add(encode(tmp_path / "a", iter(texts), tokenizer, workers=workers))
    assert len(records) == 1


def test_no_text_gives_an_empty_file(tmp_path, unigram):
    record = encode(tmp_path / "a", iter([]), unigram[0], workers=2)
    assert (record.tokens, record.documents, record.bytes) == (0, 0, 0)


def test_only_a_few_batches_are_read_ahead(tmp_path, unigram, monkeypatch):
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 1)
    written, ahead = [0], []

    def texts():
        for index in range(60):
            ahead.append(index - written[0])
            yield "abc"

    chunks = module._dealt(texts(), unigram[0], 2)
    for _ in chunks:
        written[0] += 1
    assert written[0] == 60
    assert max(ahead) <= 2 * module.BATCHES_A_WORKER


@pytest.mark.parametrize("workers", [1, 2])
def test_a_text_that_cannot_be_read_leaves_no_file(tmp_path, unigram, workers):
    def texts():
        yield "abc"
        raise ValueError("torn")

    with pytest.raises(ValueError, match="torn"):
        encode(tmp_path / "a", texts(), unigram[0], workers=workers)
    assert list(tmp_path.iterdir()) == []


def test_workers_end_when_the_process_that_started_them_is_killed(tmp_path, unigram):
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        [sys.executable, str(script), str(unigram[1])],
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"going\n"
        workers = children(process.pid)
        assert len(workers) >= 2
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline, "a worker outlives its parent"
        time.sleep(0.05)
    (unigram[1] / f".a.tokens.{process.pid}.partial").unlink()


def children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(word) for word in listed.split()]
