"""A preparation as a process: ``python -m tests.data_prep.prepare_corpus TEXTS ROOT``."""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

from components.config.schema.data import Source
from data_prep.stages.runner import Executor, Local
from data_prep.stages.tokens import StagedTokenise
from data_prep.tokenise import Tokenise
from tests.data_prep.conftest import make_tokenizer
from tests.data_prep.corpora import LANGUAGES, MANY_TASKS, clean, prepare, runner_of


def prepared(
    sources: Mapping[str, Source],
    root: Path,
    *,
    executor: Executor | None = None,
    how: Tokenise | None = None,
) -> str:
    """Clean and tokenise, by default in stages; return the hash of the folder."""
    cleaned = clean(sources, root, executor=executor, **MANY_TASKS)
    folder, _ = prepare(
        sources=cleaned.sources,
        stages=cleaned.stages,
        tokenise=how or StagedTokenise(runner=runner_of(root, executor=executor)),
        tokenizer=make_tokenizer(700),
        root=root / "prepared",
    )
    digest = hashlib.sha256(folder.name.encode())
    for path in sorted(folder.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    texts, root = map(Path, sys.argv[1:])
    sources = {name: Source(files=(f"{texts}/{name}*",)) for name in LANGUAGES}
    two = Local(workers=2)
    sys.stdout.write(prepared(sources, root, executor=two) + "\n")
