import json

from hypothesis import given, settings
from hypothesis import strategies as st

from components.data.files import hash_file
from components.errors import RecipeError
from data_prep.read import LocalFile
from data_prep.sources import OpenSource
from data_prep.stages.plan import cut_source

TEXT = st.text(st.sampled_from("ab\n \r\té\u2003"), max_size=60)
QUICK = settings(max_examples=150)


def pieces_of(tmp_path_factory, name, content, shard_bytes):
    path = tmp_path_factory.mktemp("cut") / name
    path.write_bytes(content)
    file = LocalFile(path=path, name=name, where="here", column="text")
    source = OpenSource(inputs=(file,), records=(file.hash_input(),), column="text")
    tasks = list(cut_source("mine", source, shard_bytes))
    return file, [piece for task in tasks for piece in task.pieces]


def texts_of(file: LocalFile) -> list[str]:
    return [item.text for item in file.iter_items() if not isinstance(item, RecipeError)]


def read(file, pieces):
    found = []
    for piece in pieces:
        part = LocalFile(
            path=file.path, name="", where="", column="text", start=piece.start, end=piece.end
        )
        found += texts_of(part)
    return found


@QUICK
@given(text=TEXT, shard_bytes=st.integers(1, 40))
def test_a_text_file_is_cut_between_documents(tmp_path_factory, text, shard_bytes):
    file, pieces = pieces_of(tmp_path_factory, "a.txt", text.encode(), shard_bytes)
    assert read(file, pieces) == texts_of(file)
    assert sum(piece.bytes for piece in pieces) == file.path.stat().st_size
    for piece in pieces:
        assert piece.sha256 == hash_file(file.path, piece.start, piece.end)


@QUICK
@given(texts=st.lists(TEXT, min_size=1), shard_bytes=st.integers(1, 80))
def test_a_jsonl_file_is_cut_between_lines(tmp_path_factory, texts, shard_bytes):
    content = "\n".join(json.dumps({"text": text}) for text in texts).encode()
    file, pieces = pieces_of(tmp_path_factory, "a.jsonl", content, shard_bytes)
    assert read(file, pieces) == texts
    longest = max(len(line) + 1 for line in content.split(b"\n"))
    assert all(piece.bytes <= shard_bytes + longest for piece in pieces)


def test_small_files_share_a_task_and_keep_their_order(tmp_path):
    files = []
    for number, size in enumerate((40, 40, 40, 300, 40)):
        path = tmp_path / f"{number}.jsonl"
        line = json.dumps({"text": "x" * 10}) + "\n"
        path.write_text(line * (size // 20))
        files.append(LocalFile(path=path, name=path.name, where="here", column="text"))
    records = tuple(file.hash_input() for file in files)
    tasks = list(cut_source("mine", OpenSource(tuple(files), records, "text"), 100))
    names = [[piece.name for piece in task.pieces] for task in tasks]
    assert names[0] == ["0.jsonl", "1.jsonl"]
    order = [name for group in names for name in group]
    assert order == sorted(order)
    assert names[-1][-1] == "4.jsonl"
    assert max(sum(piece.bytes for piece in task.pieces) for task in tasks) <= 100 + 23
