"""Compare two recipes, locks, bundles or runs: same mathematics, same layout, same machine?"""

import json

from command.arguments import Arguments
from command.comparison import print_differences, read_sides
from command.outcome import ActionResult
from components.sharing.differences import as_json, compare, notes
from components.terminal import tell


def run(arguments: Arguments) -> ActionResult:
    """Print the differences by group; to differ is no failure."""
    a, b = read_sides(arguments)
    found = compare(a, b)
    said = notes(a, b, found)
    if arguments.output == "json":
        tell(json.dumps({**as_json(found), "notes": said}))
    else:
        print_differences(a, b, found, said)
    return ActionResult()
