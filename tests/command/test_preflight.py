"""``action=preflight`` on this machine."""

import json
from pathlib import Path

import pytest
import torch

from command.arguments import read_point
from command.composition.compose import compose_recipe
from command.main import main
from components.run.folder import RunFolder
from components.run.provenance import describe_software
from tests.life.conftest import TINY

Said = pytest.CaptureFixture[str]


pytestmark = pytest.mark.usefixtures("folder")


def test_this_node_is_checked_for_a_recipe_or_a_run(folder: Path, capsys: Said) -> None:
    status = main([*TINY, "action=preflight", "output=json"])
    found = json.loads(capsys.readouterr().out)
    (node,) = found["nodes"]
    checks = {one["check"]: one for one in node["findings"]}
    assert (status == 0) == found["holds"] == (checks["packages"]["verdict"] == "ok")
    assert checks["run folder"]["verdict"] == "ok"
    assert list(folder.iterdir()) == []
    run = RunFolder(folder / "run")
    run.path.mkdir()
    run.write_recipe(compose_recipe(read_point(TINY)))
    software = describe_software().model_dump(mode="json")
    run.write_json("software.json", software)
    assert main(["action=preflight", "run=run"]) == 0
    software["packages"]["numpy"] = "0.0.1"
    run.write_json("software.json", software)
    assert main(["action=preflight", "run=run"]) == 1
    assert ", not 0.0.1" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_missing_devices_have_remedy(capsys: Said) -> None:
    words = ("cluster=juwels", "scale=mini", "cluster.nodes=1", "cluster.devices_per_node=1")
    assert main([*TINY, *words, "action=preflight"]) == 1
    out = capsys.readouterr().out
    assert "0 of 1 nodes are good, 1 needed" in out
    assert "report this to the site if other nodes have 1, or load a torch" in out
