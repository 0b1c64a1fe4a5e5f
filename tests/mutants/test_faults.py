"""Every fault can still be planted, and names a test that is there."""

import ast

from tests.mutants.drawn import draw_faults, list_mutations
from tests.mutants.faults import ROOT, read_faults

FAULTS = read_faults()


def test_every_fault_has_its_source_line_and_its_test() -> None:
    assert len({(fault.file, fault.plant) for fault in FAULTS}) == len(FAULTS) >= 40
    for fault in FAULTS:
        text = (ROOT / fault.file).read_text("utf-8")
        assert fault.planted(text) != text
        ast.parse(fault.planted(text))
        file, _, name = fault.test.partition("::")
        functions = ast.parse((ROOT / file).read_text("utf-8")).body
        names = {each.name for each in functions if isinstance(each, ast.FunctionDef)}
        assert name.partition("[")[0] in names, fault.test


def test_a_seed_draws_the_same_faults_of_one_place() -> None:
    source = 'x = 1 if "ä" < b else c  # ä\ny[0] = b + c\nraise E(1)\n'
    assert [after for _, after in list_mutations(source)] == [
        source.replace('"ä" < b', "(not ('ä' < b))"),
        source.replace('"ä" < b', "('ä' <= b)"),
        source.replace("= 1", "= 2"),
        source.replace("y[0] = b + c", "pass"),
        source.replace("[0]", "[1]"),
        source.replace("b + c", "(b - c)"),
    ]
    drawn = list(draw_faults(10, 3))
    assert drawn == list(draw_faults(10, 3))
    for fault in drawn:
        ast.parse(fault.planted(fault.instead_of))
    assert "tests/components/engine" in drawn[0].pytest_words
