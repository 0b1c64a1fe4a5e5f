import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.config.schema.data import Source
from components.data.manifest import Manifest
from components.data.token_file import open_token_file
from components.data.unigram import Unigram
from components.errors import RecipeError
from tests.data_prep.corpora import prepare

REPOSITORY = Path(__file__).resolve().parents[2]
PREPARE = """
import random, resource, sys
from pathlib import Path
from components.config.schema.data import Source
from tests.data_prep.conftest import make_paragraphs, make_tokenizer
from tests.data_prep.corpora import prepare
"""
FOREVER = f"""{PREPARE}
def say(line):
    sys.stdout.write(line + "\\n")
    sys.stdout.flush()
    if line.startswith("first:"):
        sys.stdin.read()

sources = {{"first": Source(files=(sys.argv[1],)), "second": Source(files=(sys.argv[2],))}}
prepare(sources=sources, tokenizer=make_tokenizer(), root=Path(sys.argv[3]), say=say)
"""


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def run(
    sources: Any, tokenizer: Unigram, tmp_path: Path, messages: list[str]
) -> Callable[..., Any]:
    settings = {"sources": sources, "tokenizer": tokenizer, "root": tmp_path / "prepared"}
    return lambda **changes: prepare(messages=messages, **(settings | changes))


def state(folder: Path) -> dict[str, tuple[int, int]]:
    return {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in folder.iterdir()}


def test_token_files_have_exactly_the_texts_and_are_listed(run, tokenizer, sources):
    folder, manifest = run()
    assert Manifest.from_folder(folder) == manifest
    assert folder.name == f"mix-{manifest.key[:12]}"
    assert manifest.tokenizer.settings == tokenizer.get_settings()
    names = {"manifest.json", *(record.name for record in manifest.list_files())}
    assert {path.name for path in folder.iterdir()} == names
    paragraphs = Path(sources["first"].files[0]).read_text("utf-8").split("\n\n")
    decoded: list[str] = []
    for record in (*manifest.sources["first"].train, *manifest.sources["first"].held_out):
        tokens = np.asarray(open_token_file(folder, record))
        parts = np.split(tokens, np.flatnonzero(tokens == tokenizer.eod_id) + 1)
        assert len(parts.pop()) == 0
        assert len(parts) == record.documents
        decoded += [tokenizer.decode(part[:-1]) for part in parts]
    assert sorted(decoded) == sorted(paragraphs)
    assert manifest.sources["first"].documents == len(paragraphs)


def test_a_second_preparation_reuses_its_folder(run, messages, new_tokenizer, tokenizer):
    folder, manifest = run()
    before = state(folder)
    messages.clear()
    fresh = new_tokenizer(tokenizer.vocab_size)
    assert run(tokenizer=fresh) == (folder, manifest)
    assert state(folder) == before
    assert messages == [f"data: reusing {folder}"]
    assert fresh.encode(["abc ä"])[0].tolist() == tokenizer.encode(["abc ä"])[0].tolist()


def test_the_same_texts_give_the_same_bytes_elsewhere(run, tmp_path, new_tokenizer, tokenizer):
    one, _ = run()
    two, _ = run(root=tmp_path / "elsewhere", tokenizer=new_tokenizer(tokenizer.vocab_size))
    assert one.name == two.name
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes(), path.name


def test_settings_that_change_the_content_change_the_folder(run, new_tokenizer, sources):
    folders = {
        run()[0],
        run(sequence_length=9)[0],
        run(held_out_fraction=0.2)[0],
        run(tokenizer_sample_bytes=40_000)[0],
        run(tokenizer=new_tokenizer(560))[0],
        run(sources={"first": sources["first"]})[0],
    }
    with Path(sources["first"].files[0]).open("a") as file:
        file.write("\n\nanother abc")
    assert len(folders | {run()[0]}) == 6


def test_an_edited_file_is_named_by_the_next_preparation(run):
    folder, manifest = run()
    for record in manifest.list_files():
        content = bytearray((folder / record.name).read_bytes())
        content[-1] ^= 1
        (folder / record.name).write_bytes(content)
        with pytest.raises(RecipeError, match=rf"{record.name}: was changed"):
            run()
        content[-1] ^= 1
        (folder / record.name).write_bytes(content)
    run()


@contextmanager
def unfinished(sources: dict[str, Source], root: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a preparation that waits for the end of its standard input."""
    files = [source.files[0] for source in sources.values()]
    command = [sys.executable, "-c", FOREVER, *files, str(root)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=REPOSITORY, **pipes) as process:
        assert process.stdout
        assert any(line.startswith("first:") for line in process.stdout)
        yield process


def test_a_killed_preparation_leaves_no_complete_folder(run, sources, tmp_path, messages):
    root = tmp_path / "prepared"
    with unfinished(sources, root) as process:
        process.send_signal(signal.SIGKILL)
    (left,) = root.iterdir()
    assert left.name.endswith(".partial")
    assert not (left / "manifest.json").exists()
    folder, _ = run()
    assert messages[-1] == f"data: prepared {folder}"
    assert list(root.iterdir()) == [folder]


def test_a_preparation_that_another_host_left_unfinished_is_named(run, tmp_path, messages):
    folder, _ = run()
    folder.rename(left := folder.with_name(f".{folder.name}.other_host-0.partial"))
    run()
    assert f"data: {left} is unfinished: delete it if no preparation is running" in messages


def test_two_preparations_at_once_share_one_folder(run, sources, tmp_path):
    root = tmp_path / "prepared"
    with unfinished(sources, root) as slow:
        folder, _ = run()
        before = state(folder)
        slow.communicate("")
    assert slow.returncode == 0
    assert state(folder) == before
    assert list(root.iterdir()) == [folder]


def test_a_failed_preparation_leaves_nothing(run, new_tokenizer, tmp_path):
    with pytest.raises(RecipeError, match=r"tokenizer\.vocab_size: 50,000 pieces"):
        run(tokenizer=new_tokenizer(50_000))
    assert list((tmp_path / "prepared").iterdir()) == []


def test_an_unreadable_line_is_reported_while_the_tokenizer_trains(run, sources, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "abc"}\n{"tekst": "abc"}')
    source = Source(files=(str(bad),))
    with pytest.raises(RecipeError, match=r"bad\.jsonl:2 line 2 has no text"):
        run(sources={**sources, "bad": source})


def test_the_error_about_too_little_text_names_the_source(run, sources):
    Path(sources["second"].files[0]).write_text('{"text": "a"}\n{"text": "b"}')
    message = r"data\.sources\.second: has \d training tokens, one sample needs 17\n  add"
    with pytest.raises(RecipeError, match=message):
        run()


def test_a_text_without_a_held_out_part_is_refused(run, sources, tmp_path):
    one = tmp_path / "one.txt"
    one.write_text("abc" * 200)
    message = r"data\.sources\.tiny: has 0 held-out tokens, one sample needs 2"
    with pytest.raises(RecipeError, match=message):
        run(sources={**sources, "tiny": Source(files=(str(one),))}, held_out_fraction=1e-20)


@pytest.mark.long
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """Compare the peak of two processes: one reads 3 MB, one 30 MB."""
    peaks = [_peak_bytes(tmp_path / str(copies), copies) for copies in (1, 10)]
    assert peaks[1] - peaks[0] < 12 << 20


def _peak_bytes(folder: Path, copies: int) -> int:
    folder.mkdir()
    script = f"""{PREPARE}
folder = Path(sys.argv[1])
with (folder / "a.txt").open("w") as file:
    for seed in range({copies}):
        for paragraph in make_paragraphs(7500, "abcdefg", seed=seed):
            file.write(paragraph + chr(10) * 2)
sources = {{"a": Source(files=(str(folder / "a.txt"),))}}
prepare(sources=sources, tokenizer=make_tokenizer(), root=folder,
        tokenizer_sample_bytes=100_000)
sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
"""
    run = [sys.executable, "-c", script, str(folder)]
    return int(subprocess.run(run, cwd=REPOSITORY, check=True, capture_output=True).stdout)
