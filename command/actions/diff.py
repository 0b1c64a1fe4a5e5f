"""Compare two recipes, locks, bundles or runs: same mathematics, same layout, same machine?"""

from command.arguments import Arguments
from command.comparison import print_differences, read_sides
from components.sharing.differences import compare, notes


def run(arguments: Arguments) -> None:
    """Print the differences by group; to differ is no failure."""
    a, b = read_sides(arguments)
    found = compare(a, b)
    print_differences(a, b, found, notes(a, b, found), output=arguments.output)
