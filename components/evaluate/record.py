"""What was found out about one checkpoint, kept in its run folder as data.

``evaluation/tokens-....json`` has a section for each question that was asked of the checkpoint;
asked again, its section is replaced and the others stay.
"""

from importlib.metadata import version
from typing import Any

from components.checkpoint.metadata import Marker
from components.config.schema.recipe import Recipe
from components.report.evaluation import AGAIN
from components.run.folder import RunFolder
from components.run.provenance import describe_environment
from components.run.records import read_checked
from components.run.reported import EvaluationRecord

FOLDER = "evaluation"
FORMAT = 1
CONVENTIONS = {
    "loss": "nats a predicted token, mean",
    "perplexity": "exp(loss), a token of this tokenizer",
    "bits_per_byte": "summed loss / ln 2 / bytes of normalized UTF-8 text",
    "tokens": "ends of documents are predicted and counted; windows of sequence_length, packed",
    "documents": "those of which a token was predicted",
    "vocabulary": "rows added for training are in the softmax, as in training",
}
Tree = dict[str, Any]
_COLLECTED = ("texts", "tasks")  # an entry each, and each is asked for by itself


def versions(*packages: str) -> Tree:
    """Name the commit and the packages that computed something."""
    found = describe_environment([])
    kept = {key: found[key] for key in ("commit", "dirty", "python")}
    return kept | {name: version(name) for name in ("torch", *packages)}


def keep(folder: RunFolder, recipe: Recipe, marker: Marker, section: Tree) -> Tree:
    """Put ``section`` into the file of this checkpoint, and return all that it holds."""
    name = f"{FOLDER}/{marker.name}.json"
    (folder.path / FOLDER).mkdir(exist_ok=True)
    file = folder.path / name
    before = (
        read_checked(file, EvaluationRecord, finite=False, remedy=AGAIN)
        if file.exists()
        else {}
    )
    after = before | _identity(recipe, marker)
    for key, value in section.items():
        after[key] = before.get(key, {}) | value if key in _COLLECTED else value
    folder.write_json(name, after)
    return after


def _identity(recipe: Recipe, marker: Marker) -> Tree:
    return {
        "format": FORMAT,
        "checkpoint": marker.name,
        "step": marker.progress.step,
        "tokens_trained": marker.progress.tokens,
        "recipe": recipe.name,
        "scale": recipe.scale.name,
        "fingerprint": recipe.fingerprint(),
        "conventions": CONVENTIONS,
    }
