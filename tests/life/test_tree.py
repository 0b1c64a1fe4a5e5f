"""A run and its children on this machine, to the end; interrupted, the tree goes on."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from components.run.folder import RunFolder
from tests.life.conftest import Program, entries, tiny
from tests.life.test_branch import WORDS, ends

TREE: dict[str, dict[str, Any]] = {
    "cooled": {"at_tokens": 2_048, "with": "optimizer", "set": {"budget.total_tokens": 3_072}},
    "mean": {"at_tokens": 3_072, "merge": {"last": 2}},
    "long": {"of": "mean", "with": "weights", "set": {"budget.total_tokens": 1_024}},
    "judged": {"every_tokens": 2_048, "evaluate": {}},
    "given": {"of": "long", "export": {}},
}


@pytest.mark.long
def test_a_tree_of_runs_is_completed_and_resumes(program: Program, home: Path) -> None:
    text = yaml.safe_dump({"defaults": ["teuken7b"], "children": TREE})
    (home / "tree.yaml").write_text(text, "utf-8")
    own = tiny(*WORDS, *ends(4_096), "recipe=./tree.yaml", "run=trunk", "checkpoint.keep=1")
    places = [
        f"children.{name}.at_tokens={one['at_tokens']}"
        for name, one in TREE.items()
        if "at_tokens" in one
    ]
    sets = ["children.cooled.set={budget.total_tokens: 3_072}"]
    sets += ["children.long.set={budget.total_tokens: 1_024}"]
    sets += ["children.judged.every_tokens=2_048"]
    program(*own, *places, *sets)
    trunk = home / "trunk"
    kept = {int(one.name[7:]) for one in (trunk / "checkpoints").glob("tokens-*")}
    assert kept == {2_048, 3_072, 4_096}
    for name in ("cooled", "long"):
        assert RunFolder(trunk / "children" / name).end_status == "finished"
    assert (
        next(one["tokens"] for one in entries(trunk / "children" / "cooled", "step")) == 2_560
    )
    assert (trunk / "children" / "mean" / "merge.json").exists()
    assert (trunk / "children" / "given" / "config.json").exists()
    assert len(list((trunk / "evaluation").glob("*.json"))) == 2
    page = (trunk / "tree.html").read_text("utf-8")
    assert all(f">{name}<" in page for name in TREE)
    program("action=report", f"run={trunk / 'children' / 'cooled'}")
    assert (trunk / "tree.html").read_text("utf-8") == page
    (trunk / "children" / "long" / "results.json").unlink()
    wrong = program(f"resume={trunk}", "parallelism.data=2", status=2).stderr
    assert "parallelism.data: " in wrong
    assert "only its children continue" in wrong
    said = program(f"resume={trunk}").stderr
    assert "[long] run after 3072 tokens" in said
    assert "[cooled]" not in said
    program(f"resume={trunk}", status=2)
