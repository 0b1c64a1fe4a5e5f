"""Without plotly, a page next to a result is not written; a requested page is refused."""

import sys
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.report.html import check_plotly
from components.report.write import write_card_if_possible, write_report_if_possible


@pytest.fixture
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)


@pytest.mark.usefixtures("without_plotly")
def test_a_page_that_was_asked_for_is_refused() -> None:
    with pytest.raises(RecipeError, match="file: no page: plotly"):
        check_plotly("file")


@pytest.mark.usefixtures("without_plotly")
def test_a_page_next_to_a_result_is_not_written_and_the_log_says_so(tmp_path: Path) -> None:
    lines: list[str] = []
    page = tmp_path / "page.html"
    assert write_report_if_possible([tmp_path], page, lines.append) is None
    assert write_card_if_possible({}, page, lines.append) is None
    assert [line.partition(":")[0] for line in lines] == [
        "no report written",
        "no data card page written",
    ]
    assert not page.exists()


def test_where_plotly_is_nothing_is_refused() -> None:
    check_plotly("file")
