"""Every fault can still be planted, and names a test that is there."""

import ast

from tests.mutants.faults import ROOT, read_faults

FAULTS = read_faults()


def test_every_fault_has_its_line_and_its_test() -> None:
    for fault in FAULTS:
        text = (ROOT / fault.file).read_text("utf-8")
        assert fault.planted(text) != text
        ast.parse(fault.planted(text))
        file, _, name = fault.test.partition("::")
        functions = ast.parse((ROOT / file).read_text("utf-8")).body
        names = {each.name for each in functions if isinstance(each, ast.FunctionDef)}
        assert name.partition("[")[0] in names, fault.test


def test_there_are_forty_and_no_two_alike() -> None:
    assert len({(fault.file, fault.plant) for fault in FAULTS}) == len(FAULTS) >= 40
