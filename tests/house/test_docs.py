"""Every page is in the site, and every link has a target."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import yaml

from command import actions
from command.actions import jobs
from command.arguments import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINKING = [
    *PAGES,
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "recipes/README.md")),
]
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.M)
FILE = re.compile(r"`([\w./-]+\.(?:py|j2|sh))(?: [^`\n]*)?`")
TOP = {path.name for path in ROOT.iterdir()}
# Files that a command writes, placeholders, and files of other projects.
NOT_OURS = {
    *("array.sh", "install.sh", "job.sh", "gpu_tile_compact.sh", "NAME.py", "ACTION.py"),
    *("parameters_filtering.py", "colossal_oscar.py", "bigscience_pii_detect_redact.py"),
    *("x.py", "cli.py"),
}


def prose(page: Path) -> str:
    """Read a page without its code, which has brackets that are no links."""
    return CODE.sub("", FENCE.sub("", page.read_text("utf-8")))


def links(page: Path) -> list[str]:
    return [link for link in LINK.findall(prose(page)) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """Name the headings of a page as its links do."""
    titles = HEADING.findall(FENCE.sub("", page.read_text("utf-8")))
    plain = (re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in titles)
    return {re.sub(r"[\s-]+", "-", title) for title in plain}


def nav_entries(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from nav_entries(inner)


def test_every_action_has_a_section_in_the_docs() -> None:
    titles = HEADING.findall((DOCS / "actions.md").read_text("utf-8"))
    modules = (*iter_modules(actions.__path__), *iter_modules(jobs.__path__))
    built = sorted({module.name for module in modules} - {"jobs"})
    assert len(built) > 15
    assert [name for name in built if f"`{name}`" not in titles] == []


def test_every_page_is_in_the_site_once_and_every_entry_of_it_exists() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    shown: list[Path] = []
    for entry in nav_entries(config["nav"]):
        place = DOCS / entry
        # An entry that ends with a slash is a folder with pages.
        shown += sorted(place.glob("*.md")) if entry.endswith("/") else [place]
    assert sorted(shown) == PAGES


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_the_site_links_within_the_site(page: Path) -> None:
    outside = [
        link
        for link in links(page)
        if not (page.parent / link.partition("#")[0]).resolve().is_relative_to(DOCS)
    ]
    assert outside == []


def test_the_search_finds_links() -> None:
    assert "docs/plan.md" in links(ROOT / "README.md")
    assert sum(len(links(page)) for page in LINKING) > 60


def test_the_site_loads_no_fonts_from_other_hosts() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    assert config["theme"]["font"] is False
    assert not {"extra_javascript", "extra_css"} & set(config)


def test_every_file_that_a_page_names_exists() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True)
    files = tracked.stdout.decode().split()
    names = {Path(file).name for file in files} | NOT_OURS

    def exists(name: str) -> bool:
        whole = name.split("/")[0] in TOP and Path(name).name not in NOT_OURS
        return name in files if whole else Path(name).name in names

    missing = {
        f"{page.name}: {name}"
        for page in LINKING
        for name in FILE.findall(page.read_text("utf-8"))
        if not exists(name)
    }
    assert missing == set()


def test_every_release_of_the_changelog_has_each_heading_once() -> None:
    _, *releases = (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")
    for release in releases:
        name, _, entries = release.partition("\n\n")
        headings = re.findall(r"^### (.*)$", entries, re.M)
        assert entries.startswith("### "), name
        assert len(headings) == len(set(headings)), name
