"""Where plotly is missing a page is left out, or refused if it was asked for."""

import sys
from pathlib import Path

import pytest

from components.errors import RecipeError
from components.report.pages import check_plotly, leave_card, leave_report


@pytest.fixture
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)


@pytest.mark.usefixtures("without_plotly")
def test_a_page_that_was_asked_for_is_refused() -> None:
    with pytest.raises(RecipeError, match="file: no page: plotly"):
        check_plotly("file")


@pytest.mark.usefixtures("without_plotly")
def test_a_page_beside_a_result_is_left_out_and_that_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    page = tmp_path / "page.html"
    assert leave_report([tmp_path], page, said.append) is None
    assert leave_card({}, page, said.append) is None
    assert [line.partition(" is left out")[0] for line in said] == [
        "the report",
        "the card's page",
    ]
    assert not page.exists()


def test_where_plotly_is_nothing_is_refused() -> None:
    check_plotly("file")
