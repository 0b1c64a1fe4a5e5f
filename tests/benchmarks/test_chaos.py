"""The page of what was broken says what the results say; draws can be made again."""

from benchmarks.chaos.cases import CASES, DRAWS, LAYOUTS, check_complete, draws
from benchmarks.chaos.chaos import BEGIN, END, PAGE, asked_for, kept_rows, table


def test_the_page_has_the_rows_that_are_kept() -> None:
    _, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    section, end, _ = rest.partition(END)
    assert end
    assert section == table(kept_rows())


def test_every_case_strikes_three_different_steps_that_are_drawn_alike_again() -> None:
    check_complete()
    for layout in LAYOUTS:
        for case in CASES:
            drawn = draws(layout, case)
            assert drawn == draws(layout, case)
            assert len({draw.step for draw in drawn}) == DRAWS
            assert {draw.step for draw in drawn} <= set(case.steps)


def test_kept_rows_are_of_steps_that_would_be_drawn_today() -> None:
    today = {
        (draw.layout, draw.case.name, draw.number): (draw.step, draw.rank, draw.moment)
        for draw in asked_for([])
    }
    for row in kept_rows():
        key = row["layout"], row["case"], row["draw"]
        assert today[key] == (row["step"], row["rank"], row["moment"])
        assert row["holds"]


def test_what_is_in_the_data_strikes_all_ranks_that_read_it() -> None:
    spike = next(case for case in CASES if case.is_in_data)
    for draw in (one for layout in LAYOUTS for one in draws(layout, spike)):
        pairs = ({0, 1}, {2, 3}) if draw.layout.startswith("tensor") else ({0, 2}, {1, 3})
        assert {fault["rank"] for fault in draw.faults} in pairs


def test_what_is_missing_alone_is_run_and_first_draws_come_first() -> None:
    kept = {(row["layout"], row["case"], row["draw"]) for row in kept_rows()}
    left = asked_for(["--missing"])
    assert len(left) + len(kept) == len(asked_for([])) == len(LAYOUTS) * len(CASES) * DRAWS
    assert not kept & {(draw.layout, draw.case.name, draw.number) for draw in left}
    assert [draw.number for draw in left] == sorted(draw.number for draw in left)
