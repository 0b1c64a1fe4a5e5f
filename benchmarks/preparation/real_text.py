"""Build about 200 MB of real text from Debian's manuals and Python's standard library.

`apt-get download` fetches packages with text in some thirty languages. The packages are
unpacked but not installed. A document is a page of a manual or a source file.
"""

import gzip
import html
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from benchmarks.preparation.near_copies import write_texts
from components.errors import RecipeError

HELP = (
    "ca cs da de el en-us es et eu fi fr gl hi hu id it ja ko nl pl pt pt-br ru sl sv tr vi "
    "zh-cn"
)
MANUALS = (
    "cs cs-dev da de de-dev dev es es-dev fi fr fr-dev hu it it-dev ja ja-dev nl nl-dev pl "
    "pl-dev pt-br pt-br-dev ro ru ru-dev sv tr uk vi zh"
)
REFERENCES = "de en es fr id it ja pt pt-br zh-cn"
PACKAGES = (
    "manpages",
    *(f"manpages-{part}" for part in MANUALS.split()),
    *(f"libreoffice-help-{part}" for part in HELP.split()),
    *(f"debian-reference-{part}" for part in REFERENCES.split()),
)
UNREAD = re.compile(r"<(script|style)\b.*?</\1>", re.DOTALL | re.IGNORECASE)
TAG = re.compile(r"<[^>]*>")
ROFF_COMMENT = re.compile(r'^[.\']\s*\\".*$', re.MULTILINE)
ROFF_MACRO = re.compile(r"^[.'][ \t]*\w*[ \t]*", re.MULTILINE)
ROFF_FONT = re.compile(r"\\f(\[\w*\]|\(\w\w|\w)|\\[,/&|^]|\\s[+-]?\d")


def real_text(folder: Path) -> list[Path]:
    """Return the files ``FOLDER/text/*.jsonl`` in a fixed order; the first call builds them.

    Raises:
        RecipeError: this is not Debian, or the package archive is not reachable.
    """
    texts = folder / "text"
    if not texts.exists():
        unpacked = _unpack_packages(folder)
        partial = folder / "text.partial"
        partial.mkdir(parents=True, exist_ok=True)
        for package in PACKAGES:
            pages = filter(None, package_pages(unpacked / package))
            write_texts(partial / f"{package}.jsonl", pages)
        write_texts(partial / "python.jsonl", filter(None, _library_sources()))
        partial.rename(texts)
    return sorted(texts.glob("*.jsonl"))


def package_pages(folder: Path) -> Iterator[str]:
    """Read the manual pages and HTML pages of one unpacked package as plain text."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        if path.suffix == ".html":
            page = path.read_text("utf-8", "ignore")
            yield _strip_lines(html.unescape(TAG.sub("", UNREAD.sub("", page))))
        elif path.suffix == ".gz" and "man" in path.parts:
            page = gzip.decompress(path.read_bytes()).decode("utf-8", "ignore")
            yield _strip_lines(_plain_roff(page))


def _unpack_packages(folder: Path) -> Path:
    unpacked, archives = folder / "unpacked", folder / "packages"
    for directory in (unpacked, archives):
        directory.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        if not (unpacked / package).exists():
            if not list(archives.glob(f"{package}_*.deb")):
                _run_command(["apt-get", "download", "--quiet", package], archives)
            (archive,) = archives.glob(f"{package}_*.deb")
            target = str(unpacked / package)
            _run_command(["dpkg-deb", "--extract", str(archive), target], archives)
    return unpacked


def _run_command(command: list[str], folder: Path) -> None:
    try:
        result = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise RecipeError(command[0], "is not installed", "build the text on Debian") from error
    if result.returncode:
        last = result.stderr.strip().splitlines()[-1:]
        fix = "check the packages and the network"
        raise RecipeError(" ".join(command[:3]), " ".join(last) or "failed", fix)


def _plain_roff(page: str) -> str:
    for pattern in (ROFF_COMMENT, ROFF_MACRO, ROFF_FONT):
        page = pattern.sub("", page)
    return page.replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\")


def _strip_lines(text: str) -> str:
    return "\n".join(filter(None, (line.strip() for line in text.splitlines())))


def _library_sources() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in path.parts:
            yield path.read_text("utf-8", "ignore")
