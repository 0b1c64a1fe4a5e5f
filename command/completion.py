"""Tab completion for bash: print the words that may complete the current line.

Words come from tables and local file names. No recipe is composed. Bash completes paths itself.
"""

import os
import shlex
import sys

from command.arguments import ROOT, list_config_groups
from command.options import OPTIONS, choices_of
from command.words import ACTIONS
from components.errors import RecipeError
from components.terminal import print_output

LINE = "COMP_LINE"  # bash stores the line up to the cursor here
# Bash splits words at the equals sign, so an offered word starts after the sign.
BASH = """\
_kochbuch() {{
    local word
    COMPREPLY=()
    [[ ${{COMP_WORDS[1]}} -ef {entry} ]] || return 0
    compopt -o nospace
    while read -r word; do
        [[ $COMP_WORDBREAKS == *=* && $word == *=?* ]] && word=${{word#*=}}
        COMPREPLY+=("$word")
    done < <({line}="${{COMP_LINE:0:COMP_POINT}}" {python} {entry} -sc query=bash 2>/dev/null)
}}
complete -o bashdefault -o default -F _kochbuch python python3
"""
SCRIPTS = {"install=bash": BASH, "uninstall=bash": "complete -r python python3\n"}


def print_completions(request: str) -> None:
    """Print a script for the shell (`install`, `uninstall`), or completions (`query`)."""
    if request == "query=bash":
        for word in list_completions(os.environ.get(LINE, "").partition("run.py")[2]):
            print_output(word)
    elif request in SCRIPTS:
        entry, python = (shlex.quote(str(path)) for path in (ROOT / "run.py", sys.executable))
        print_output(SCRIPTS[request].format(entry=entry, python=python, line=LINE))
    else:
        fix = 'run eval "$(python run.py --shell-completion install=bash)"'
        raise RecipeError("--shell-completion", f"expected install=bash, got {request!r}", fix)


def list_completions(line: str) -> list[str]:
    """List the possible completions of the last word of a line."""
    word = line.rpartition(" ")[2]
    key, equals, _ = word.partition("=")
    values = {
        "action": ACTIONS,
        **{name: choices_of(name) for name in OPTIONS},
        **list_config_groups(),
    }
    if not equals:
        words = [f"{name}=" for name in values if not name.endswith("*")]
    else:
        words = [f"{key}={value}" for value in values.get(key, ())]
    return sorted(candidate for candidate in words if candidate.startswith(word))
