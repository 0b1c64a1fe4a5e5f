"""The commands of a site's page, with replacements so that they run here.

Each row of the page's last table is a replacement of text. There are no others.
"""

import re
from pathlib import Path

from components.errors import RecipeError

BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.M | re.S)
CHANGES = "## Tried here, with these changes"
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \| [^|]+ \|$", re.M)
CONTINUED = re.compile(r" \\\n\s*")


def commands(page: Path) -> str:
    """Join the page's commands in their order, as they stand."""
    return "".join(BLOCK.findall(page.read_text("utf-8")))


def changes(page: Path) -> dict[str, str]:
    """Read the replacements.

    Raises:
        RecipeError: the page names no change.
    """
    _, mark, tried = page.read_text("utf-8").partition(CHANGES)
    found = dict(ROW.findall(tried))
    if not mark or not found:
        raise RecipeError(str(page), "says nowhere what is changed", f"add {CHANGES!r}")
    return found


def tried(page: Path) -> str:
    """Return the commands with every change made, in one pass over the text.

    Raises:
        RecipeError: a change has nothing to replace.
    """
    text, table = commands(page), changes(page)
    for before in table:
        if before not in text:
            raise RecipeError(str(page), f"{before!r} is in no command", "take it out")
    longest_first = sorted(table, key=len, reverse=True)
    pattern = "|".join(re.escape(before) for before in longest_first)
    return re.sub(pattern, lambda found: table[found[0]], text)


def calls(page: Path) -> list[str]:
    """List the commands of ``run.py``, each in one line."""
    lines = CONTINUED.sub(" ", commands(page)).splitlines()
    return [line for line in lines if line.startswith("python run.py ")]
