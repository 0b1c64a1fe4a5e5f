"""What the terminal shows of a plan: one golden text, and how long steps are cut."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from components.planner.plan import plan_recipe
from components.planner.schedule import list_actions
from components.planner.timeline import PassSeconds, Timeline, simulate_step
from components.report.document import print_document
from components.report.plan_page import plan_document
from components.report.plan_tables import Picture, picture_of
from components.report.plan_text import characters_per_second, shown_ranks, timeline_rows
from components.terminal import create_console
from tests.components.layouts import parallelism
from tests.recipes.compositions import RECIPES, at_home
from tests.recipes.golden_files import check_text, is_update

ROOT = Path(__file__).resolve().parents[2]
TEXT = Path(__file__).parent / "pictures" / "teuken7b.txt"
DOCS = ROOT / "docs" / "plan.md"
BEGIN, END = "<!-- picture: written by `make golden` -->\n", "<!-- end of picture -->\n"


def picture(name: str, *words: str) -> Picture:
    return picture_of(plan_recipe(at_home(name, *words)))


def printed(name: str, *words: str) -> str:
    recipe = at_home(name, *words)
    plan = plan_recipe(recipe)
    with redirect_stdout(StringIO()) as file:
        document = plan_document(plan, picture_of(plan), why=recipe.description)
        print_document(document, create_console(width=130))
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def timeline(
    schedule: str, pipeline: int, microbatches: int, stages: int, forward: float
) -> Timeline:
    seconds = PassSeconds(forward=forward, backward=2 * forward, weights=forward)
    where = parallelism(schedule=schedule, pipeline=pipeline, stages_per_rank=stages)
    return simulate_step(list_actions(where, microbatches), [seconds] * pipeline * stages)


def test_the_text_of_a_plan_is_its_golden_file() -> None:
    check_text(TEXT, printed("teuken7b"))


def test_the_documentation_shows_the_golden_text() -> None:
    text = TEXT.read_text("utf-8")
    shown = text[text.index("Memory\n") : text.index("Published and predicted\n")].rstrip()
    block = f"```\n{shown}\n```\n"
    page = DOCS.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    written, _, after = rest.partition(END)
    if is_update():
        DOCS.write_text(before + BEGIN + block + END + after, "utf-8")
        written = block
    assert written == block, "`make golden` writes it"


def test_every_pass_of_1f1b_is_drawn_at_its_time() -> None:
    """Two ranks, two microbatches: F0 F1 . . B0 . B1 and . F0 B0 F1 B1, in fours."""
    rows = timeline_rows(timeline("1f1b", 2, 2, 1, 1.0), 9 * 4 + 19)
    heading, first, second, legend = rows
    assert first[5:41] == "0───1───········0═══════····1═══════"
    assert second[5:41] == "····0───0═══════1───1═══════········"
    assert heading.split() == ["rank", "9", "s", "of", "passes", "waits", "keeps"]
    assert first.split()[-2:] == ["33.3%", "2"]
    assert legend.split(", ")[-1] == "· waits"


def test_the_gradient_of_the_weights_has_its_own_line() -> None:
    rows = timeline_rows(timeline("zero_bubble", 2, 2, 2, 1.0), 130)
    assert "0~~" in rows[1]
    assert "0≈≈" in rows[1]
    assert "its backward pass" not in rows[-1]
    assert "the gradient of its weights" in rows[-1]
    assert "~" not in "".join(timeline_rows(timeline("1f1b", 2, 2, 1, 1.0), 130))


def test_dualpipev_has_whole_and_split_backward_passes() -> None:
    """Two ranks: the first waits for 2 to come, whose pass the second overlaps with 0's."""
    rows = timeline_rows(timeline("dualpipev", 2, 4, 2, 1.0), 26 * 4 + 19)
    _, first, second, legend = rows
    assert first[5:].startswith("0───1───2───0───0≈≈≈0~~~1───3───1═══════····2───0═══════")
    assert second[5:].startswith("····0───0───1───1───2───0═══════2───0═══════3───1═══════")
    for words in ("its backward pass", "the gradient of its input", "of its weights"):
        assert words in legend
    assert first.split()[-1] == second.split()[-1] == "2.5"


@pytest.mark.parametrize("width", [60, 90, 130, 200])
def test_rows_fit_the_width_and_long_steps_lose_their_middle(width: int) -> None:
    for pipeline, microbatches in ((2, 2), (4, 64), (12, 128), (64, 64)):
        rows = timeline_rows(timeline("1f1b", pipeline, microbatches, 1, 0.25), width)
        assert {len(row) for row in rows[1:-1] if row.strip() != "…"} <= {width}
        assert (" … " in rows[1]) == (microbatches > 2)


def test_a_cut_step_shows_the_filling_of_the_pipeline() -> None:
    long = timeline("1f1b", 8, 64, 1, 0.5)
    first_backward = next(b.end for b in long.ranks[0].blocks if b.kind == "backward")
    assert first_backward * characters_per_second(long, 111) <= 54
    assert "0══" in timeline_rows(long, 130)[1].partition(" … ")[0]


def test_the_first_and_last_of_many_ranks_have_a_row() -> None:
    assert shown_ranks(16) == list(range(16))
    assert shown_ranks(64) == [0, 1, 2, 3, 4, 5, None, 58, 59, 60, 61, 62, 63]


def test_without_a_pipeline_or_a_predicted_step_there_is_no_timeline() -> None:
    assert picture("playbook1b").timeline is None
    blind = ("bloom1b7", "cluster.hardware.gemm_teraflops={}")
    assert picture(*blind).timeline is None
    assert "of passes" not in printed(*blind)


@pytest.mark.parametrize("name", RECIPES)
def test_the_timeline_has_the_duration_of_the_plan(name: str) -> None:
    """To a thousandth: the formula is a bound where the end stages are the short ones."""
    plan = plan_recipe(at_home(name))
    drawn = picture_of(plan).timeline
    if drawn is not None and plan.time is not None:
        said = plan.time.microbatches + plan.time.bubble
        assert drawn.total_seconds == pytest.approx(said, rel=1e-3)


def test_the_first_and_last_of_many_nodes_are_shown() -> None:
    text = printed("gpt175b")
    assert "\n3     t0p3" in text
    assert "\n4     t0p4" not in text
    assert "\n15    t0p15" in text
    assert "one copy of the model, of 128 ranks on 16 of 16 nodes" in text


def test_ranks_of_other_copies_are_in_parentheses() -> None:
    assert "64    d0t0p1  d0t1p1  (d1t0p1)  (d1t1p1)" in printed("teuken7b")
