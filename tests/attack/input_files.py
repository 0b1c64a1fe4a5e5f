"""Files of text by number: every format that a recipe reads, sound and damaged."""

import gzip
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import zstandard

from tests.attack.input_tokenizers import EOD

EXTRAS = (
    "naïve café, ﬁne",
    "नमस्ते दुनिया, यह एक परीक्षण है",
    "שלום עולם \u200f!",
    "👩‍👩‍👧‍👦 family",
    "tab\tand\x0bvertical\x0cfeed",
    "nul\x00inside",
    "line\u2028separator\u0085next",
    f"an end {EOD} inside",
    "x" * 40_000,
    "\ufeffmark",
    "1e3: true, null, ${now:}",
)


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """Files by name, the value of ``data=``, and the documents they hold if nothing is wrong.

    With ``documents`` None the files are damaged: they may be refused.
    """

    files: dict[str, bytes]
    data: str
    documents: Sequence[str] | None


def write_files(text: str, random: Random) -> TextFiles:
    """Write documents in a random format, and damage every second file."""
    documents = [part for part in text.split("\n\n") if part.strip()]
    for extra in random.sample(EXTRAS, random.randrange(4)):
        documents.insert(random.randrange(len(documents)), extra)
    kind = random.choice(("txt", "txt", "jsonl", "jsonl", "parquet"))
    if kind == "txt":  # a blank line separates paragraphs, however a document came by it
        documents = [part for one in documents for part in one.split("\n\n") if part.strip()]
    content = WRITERS[kind](documents, random)
    name = random.choice(("text", "my text", "1e3", "true", "a.b", "ünï", "-x")) + f".{kind}"
    if kind != "parquet":
        name, content = _compress(name, content, random)
    if random.random() < 0.5:
        return TextFiles(files={name: content}, data=f"./{name}", documents=documents)
    damaged = random.choice(DAMAGES)(content, random)
    return TextFiles(files={name: damaged}, data=f"./{name}", documents=None)


def _write_txt(documents: Sequence[str], random: Random) -> bytes:
    end = random.choice(("\n", "\n", "\n", "\r\n"))
    text = (end * random.choice((2, 3))).join(one.replace("\n", end) for one in documents)
    mark = b"\xef\xbb\xbf" if random.random() < 0.1 else b""
    return mark + (text + random.choice(("", end, end * 3))).encode()


def _write_jsonl(documents: Sequence[str], random: Random) -> bytes:
    ascii_only = random.random() < 0.5
    lines = [json.dumps({"text": one, "id": 1}, ensure_ascii=ascii_only) for one in documents]
    return "\n".join(lines).encode() + random.choice((b"", b"\n", b"\n\n"))


def _write_parquet(documents: Sequence[str], random: Random) -> bytes:
    import pyarrow as pa  # it starts a thread, and the runner of the cases forks
    import pyarrow.parquet as pq

    column: Any = pa.array(documents, random.choice((pa.string(), pa.string_view())))
    if column.type == pa.string():
        encoded = (column, column.cast(pa.large_string()), column.dictionary_encode())
        column = random.choice(encoded)
    stream = io.BytesIO()
    table = pa.table({"text": column, "n": pa.array(range(len(documents)))})
    pq.write_table(
        table,
        stream,
        compression=random.choice(("none", "snappy", "zstd")),
        row_group_size=random.choice((7, 1_000)),
    )
    return stream.getvalue()


WRITERS: dict[str, Callable[[Sequence[str], Random], bytes]] = {
    "txt": _write_txt,
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
}


def _compress(name: str, content: bytes, random: Random) -> tuple[str, bytes]:
    match random.randrange(4):
        case 0:
            half = len(content) // 2 if random.random() < 0.5 else len(content)
            members = (content[:half], content[half:]) if content[half:] else (content,)
            return f"{name}.gz", b"".join(map(gzip.compress, members))
        case 1:
            return f"{name}.zst", zstandard.ZstdCompressor().compress(content)
    return name, content


def _truncate(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content))]


def _flip_bits(content: bytes, random: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice((1, 5))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _append(content: bytes, random: Random) -> bytes:
    return content + random.choice((b"\0" * 512, b"garbage", b"\xff\xfe", b"\n{", content[:50]))


def _replace_part(content: bytes, random: Random) -> bytes:
    """Cut something out, or put bytes of another encoding or a broken record in its place."""
    start = random.randrange(len(content))
    piece = random.choice((
        b"",
        "ÄÖÜ".encode("latin-1"),
        b'\n{"text": null}\n',
        b'\n{"text": "\\ud800"}\n',
        b'\n{"other": "x"}\n',
        b"\n[1, 2]\n",
        b"\0\0\0\0",
    ))
    return content[:start] + piece + content[start + random.randrange(200) :]


def _replace_all(content: bytes, random: Random) -> bytes:
    return random.choice((
        b"",
        b"\n" * 30_000,
        "wide text\n\n".encode("utf-16") * 3_000,
        b"PAR1" * 8_000,
        b"\x1f\x8b" + content,
        gzip.compress(gzip.compress(content)),
        content.replace(b"\n", b"\r"),
        bytes(random.randrange(256) for _ in range(30_000)),
    ))


DAMAGES = (_truncate, _flip_bits, _append, _replace_part, _replace_all)
