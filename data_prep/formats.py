"""What a file's name says of its format, and the text that was packed into it.

pyarrow unpacks: it notices a stream that ends too early, which Python's own reader of Zstandard
does not. It is imported where it is needed: who reads plain text does not wait for it.
"""

import io
from pathlib import Path
from typing import Any

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
KINDS = (
    *(f"{kind}{packed}" for kind in (".txt", ".jsonl") for packed in ("", *COMPRESSIONS)),
    ".parquet",
)
MOST_LINE_BYTES = 1 << 28  # a longer line is more likely a broken file than a document
READ_BYTES = 1 << 20


def kind_of(name: str) -> str | None:
    """Give the end of ``name`` that says its format, as ``.jsonl.gz``, if one does."""
    return next((kind for kind in KINDS if name.endswith(kind)), None)


def open_unpacked(path: Path) -> io.BufferedReader:
    """Open a file as the bytes of its text; reading raises ``OSError`` where it is damaged."""
    compression = COMPRESSIONS.get(path.suffix)
    if compression is None:
        return path.open("rb")
    import pyarrow  # see above

    stream: Any = pyarrow.input_stream(str(path), compression=compression)
    return io.BufferedReader(stream, READ_BYTES)
