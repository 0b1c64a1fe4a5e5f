"""What show and plan say of the mixture."""

from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.recipe_summary import mixture_lines

GIVEN = "data.shares={en: 0.25, de: 0.75}"


def lines(*words: str) -> list[str]:
    point = ["recipe=teuken7b", "budget.total_tokens=614_400", *words]
    return list(mixture_lines(compose_recipe(read_point(point))))


def test_one_phase_is_one_line_with_the_largest_share_first():
    assert lines(GIVEN) == ["mixture, tokens 0 to 614,400: de 75.0000%, en 25.0000%"]


def test_phases_and_limits_have_lines_of_their_own():
    phase = "data.phases={end: {from_fraction: 0.75, shares: {en: 1.0}}}"
    assert lines(
        GIVEN, phase, "data.sources.en.most_epochs=4", "data.on_exhausted=redistribute"
    ) == [
        "mixture, tokens 0 to 460,800: de 75.0000%, en 25.0000%",
        "mixture, tokens 460,800 to 614,400: en 100.0000%",
        "read at most: en 4 times; then redistribute",
    ]


def test_a_rule_says_what_it_waits_for():
    (line,) = lines("data.shares={}", "data.mixture={temperature: 3}")
    assert line.endswith(
        "by tokens ** (1 / 3); action=prepare counts the tokens and prints the shares"
    )
    (line,) = lines("data.shares={}", "data.mixture=natural")
    assert "in proportion to the tokens; action=prepare" in line
