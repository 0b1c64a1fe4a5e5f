"""Compare two recipes, locks, bundles or runs: same mathematics, same layout, same machine?"""

import json

from command.arguments import Arguments
from command.differences_text import print_differences
from command.outcome import Outcome
from command.sides import read_sides
from components.sharing.differences import as_json, compare, notes
from components.terminal import tell


def run(arguments: Arguments) -> Outcome:
    """Print the differences by group; to differ is no failure."""
    a, b = read_sides(arguments)
    found = compare(a, b)
    said = notes(a, b, found)
    if arguments.output == "json":
        tell(json.dumps({**as_json(found), "notes": said}))
    else:
        print_differences(a, b, found, said)
    return Outcome()
