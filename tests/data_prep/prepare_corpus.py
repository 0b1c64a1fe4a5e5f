"""A preparation as a process: ``python -m tests.data_prep.prepare_corpus TEXTS ROOT``."""

import sys
from pathlib import Path

from components.spec.data import Source
from data_prep.stages.executors import Local
from tests.data_prep.corpora import LANGUAGES, MANY_TASKS, clean, digest_of

if __name__ == "__main__":
    texts, root = map(Path, sys.argv[1:])
    sources = {name: Source(files=(f"{texts}/{name}*",)) for name in LANGUAGES}
    two = Local(workers=2, leave_failures=False)
    sys.stdout.write(digest_of(clean(sources, root, executor=two, **MANY_TASKS)) + "\n")
