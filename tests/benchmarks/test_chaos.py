"""The page of fault injection has the stored results; draws are reproducible."""

from benchmarks.chaos.cases import CASES, DRAWS, LAYOUTS, check_complete, draws
from benchmarks.chaos.chaos import PAGE, RESULT, WRITER, draws_of, table
from benchmarks.generated_section import split_section
from benchmarks.results_store import read_rows


def test_the_page_has_the_stored_rows() -> None:
    _, section, _ = split_section(PAGE.read_text("utf-8"), "chaos", WRITER)
    assert section == table(read_rows(RESULT))


def test_every_case_has_three_different_steps_and_reproducible_draws() -> None:
    check_complete()
    for layout in LAYOUTS:
        for case in CASES:
            drawn = draws(layout, case)
            assert drawn == draws(layout, case)
            assert len({draw.step for draw in drawn}) == DRAWS
            assert {draw.step for draw in drawn} <= set(case.steps)


def test_stored_rows_have_the_draws_of_today() -> None:
    today = {
        (draw.layout, draw.case.name, draw.number): (draw.step, draw.rank, draw.moment)
        for draw in draws_of([])
    }
    for row in read_rows(RESULT):
        key = row["layout"], row["case"], row["draw"]
        assert today[key] == (row["step"], row["rank"], row["moment"])
        assert row["holds"]


def test_a_fault_in_the_data_affects_all_ranks_that_read_it() -> None:
    spike = next(case for case in CASES if case.is_in_data)
    for draw in [draw for layout in LAYOUTS for draw in draws(layout, spike)]:
        pairs = ({0, 1}, {2, 3}) if draw.layout.startswith("tensor") else ({0, 2}, {1, 3})
        assert {fault["rank"] for fault in draw.faults} in pairs


def test_first_draws_come_first() -> None:
    numbers = [draw.number for draw in draws_of([])]
    assert len(numbers) == len(LAYOUTS) * len(CASES) * DRAWS
    assert numbers == sorted(numbers)
