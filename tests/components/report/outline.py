"""What every page keeps to, read from its tags: on a phone, on paper, by ear."""

import base64
import hashlib
import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise

_VOID = frozenset({"meta", "br", "hr", "img", "input", "link"})
_LISTED = 5  # sections of a page that has a contents list
Attributes = dict[str, str]


class Outline(HTMLParser):
    """The elements of a page, each with what it stands in; its text; its blocks of code."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.elements: list[tuple[str, Attributes, tuple[tuple[str, Attributes], ...]]] = []
        self.text, self.code, self._open = "", "", list[tuple[str, Attributes]]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {key: value or "" for key, value in attrs}
        self.elements.append((tag, attributes, tuple(self._open)))
        if tag not in _VOID:
            self._open.append((tag, attributes))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag, f"{tag} closes another element"

    def handle_data(self, data: str) -> None:
        inside = self._open[-1][0] if self._open else "script"
        if inside not in {"script", "style"}:
            self.text += data
            self.code += data if any(tag == "pre" for tag, _ in self._open) else ""

    def all(self, tag: str) -> list[Attributes]:
        return [attributes for name, attributes, _ in self.elements if name == tag]

    def unfolded(self, tag: str) -> int:
        """Count the elements that a reader sees without opening anything."""
        found = (around for name, _, around in self.elements if name == tag)
        return sum(all(name != "details" for name, _ in around) for around in found)


def check_outline(html: str) -> Outline:
    """Check that the page loads nothing, fits a phone, lists its contents and can be read."""
    page = Outline(html)
    viewport = {"name": "viewport", "content": "width=device-width, initial-scale=1"}
    assert viewport in page.all("meta")
    assert "prefers-color-scheme: dark" in html
    assert "default-src 'none'" in html
    tags = {tag for tag, _, _ in page.elements}
    assert not {"link", "iframe", "img", "object", "embed", "base"} & tags
    scripts = re.findall(r"(?s)<script>(.*?)</script>", html)
    assert set(map(_digest, scripts)) <= set(re.findall(r"'sha256-([^']+)'", policy_of(html)))
    assert "unsafe-inline" not in policy_of(html)
    assert not re.search(r"url\(|@import", re.sub(r"(?s)<script.*?</script>", "", html))
    assert len(html) < 6_000_000  # the library of charts is there once
    _check_headings(page)
    _check_contents(page)
    for tag, attributes, around in page.elements:
        if tag == "table":
            boxes = [one for _, one in around if one.get("class") == "scroll"]
            assert [(b["role"], b["tabindex"]) for b in boxes] == [("region", "0")], attributes
            assert boxes[0]["aria-label"].removeprefix("Table: ")
        assert tag != "th" or attributes["scope"] in {"row", "col"}
        if tag == "figure":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
    return page


def policy_of(html: str) -> str:
    """Return which scripts a page allows."""
    return html.partition("script-src")[2].partition(";")[0]


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _check_headings(page: Outline) -> None:
    tags = (tag for tag, _, _ in page.elements if re.fullmatch(r"h\d", tag))
    levels = [int(tag[1]) for tag in tags]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def _check_contents(page: Outline) -> None:
    ids = Counter(one["id"] for _, one, _ in page.elements if "id" in one)
    assert max(ids.values(), default=1) == 1, ids.most_common(1)
    links = [one["href"] for one in page.all("a") if one["href"].startswith("#")]
    sections = [f"#{one['id']}" for one in page.all("section") if "id" in one]
    assert links == (sections if len(sections) >= _LISTED else [])
