"""Write a bundle: one file that runs where nothing of the recipe's own files is."""

from collections.abc import Iterator

from command.actions.lock import make_lock, write_lock
from command.arguments import Arguments
from components.sharing.lock import Lock
from components.terminal import say, tell


def run(arguments: Arguments) -> None:
    """Write ``NAME-HASH.recipe.yaml``, or the file that is named, and say what stays behind."""
    lock = make_lock(arguments, bundle=True)
    file = write_lock(lock, arguments, "recipe")
    for line in _left_behind(lock):
        say(f"not in the file: {line}")
    tell(str(file))


def _left_behind(lock: Lock) -> Iterator[str]:
    """Name what a receiver has to bring: code, packages, text, tokenizer, weights."""
    tree = lock.model_dump(mode="json")
    commit = tree["software"]["code"]["commit"]
    yield f"the code (commit {commit}) and packages, by version and hash"
    if tree["software"]["code"]["changes"] != "absent":
        yield "changes of the code since that commit: commit them, or send them too"
    data, model = tree["settled"]["data"], tree["settled"]["model"]
    hashed = ", by hash" if tree["data"] != "none" else "; not prepared, so not even by hash"
    for name, source in data["sources"].items():
        places = [*source["files"], *source.get("tokens", ())]
        if places or source.get("dataset"):
            yield f"the text of data.sources.{name}{hashed}"
    if data["tokenizer_folder"] != "none":
        yield f"the tokenizer in {data['tokenizer_folder']}{hashed}"
    if model.get("init_from", "none") != "none":
        yield f"the weights to begin with in {model['init_from']}, not hashed"
