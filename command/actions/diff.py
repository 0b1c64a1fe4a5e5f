"""Compare two recipes, locks, bundles or runs by mathematics, layout and machine."""

from command.arguments import Arguments
from command.comparison import print_differences, read_sides
from components.sharing.differences import compare_sides, list_notes


def run(arguments: Arguments) -> None:
    """Print the differences by group. Differences do not fail the command."""
    a, b = read_sides(arguments)
    differences = compare_sides(a, b)
    print_differences(a, b, differences, list_notes(a, b, differences), output=arguments.output)
