"""The contents list of a page: a link to each of its sections, below the page's header."""

import re

_SECTION = re.compile(r"<section([^>]*)>\s*<h2>(.*?)</h2>")
_FEWEST = 5  # sections below which a page needs no list


def with_contents(body: str) -> str:
    """Give every section with a heading an id, and list them if they are many.

    A template's own tags are the only ones there are: all other text is escaped.
    """
    titles: dict[str, str] = {}

    def anchored(found: re.Match[str]) -> str:
        attributes, title = found.groups()
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
        while name in titles:
            name += "-again"
        titles[name] = title
        return f'<section id="{name}"{attributes}>\n  <h2>{title}</h2>'

    text = _SECTION.sub(anchored, body)
    if len(titles) >= _FEWEST:
        links = (f'<li><a href="#{name}">{title}</a></li>' for name, title in titles.items())
        listed = f'<nav class="contents" aria-label="Contents"><ul>{"".join(links)}</ul></nav>'
        text = text.replace("</header>", f"</header>\n{listed}", 1)
    return text
