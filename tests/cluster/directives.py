"""A strict reader of directives: an option that no manual documents is an error.

Slurm's options come from sbatch(1), and PBS's from OpenPBS's qsub(1B), if a script may contain
them. Each option has a pattern for its value.
"""

import re

NAME = r"[A-Za-z0-9_.@+-]+|<[a-z]+>(@[a-z0-9]+)?"
PATH = r"/[A-Za-z0-9_./%-]+"
TIME = r"\d{2,3}:[0-5]\d:[0-5]\d"
NUMBER = r"[1-9]\d*"

SBATCH = {
    "--account": NAME,
    "--array": r"1-[1-9]\d*%1",
    "--constraint": rf"({NAME})(&({NAME}))*",
    "--cpus-per-task": NUMBER,
    "--ear": "on|off",  # a plugin of the Energy Aware Runtime, where it is installed
    "--exclusive": "(user|mcs|topo)?",
    "--export": "NONE|ALL",
    "--gpus-per-node": NUMBER,
    "--gres": r"gpu:[1-9]\d*",
    "--hint": "nomultithread|multithread|compute_bound|memory_bound",
    "--job-name": NAME,
    "--mail-type": "ALL|BEGIN|END|FAIL|REQUEUE|NONE",
    "--mail-user": r"[^@\s]+@[^@\s]+",
    "--mem": r"0|[1-9]\d*[KMGT]?",  # 0: all that a node has
    "--network": "disable_rdzv_get",  # of the plugin for Slingshot, hpe_slingshot
    "--nodes": NUMBER,
    "--ntasks-per-node": NUMBER,
    "--open-mode": "append|truncate",
    "--output": PATH,
    "--partition": NAME,
    "--qos": NAME,
    "--no-kill": "",
    "--requeue": "",
    "--reservation": NAME,
    "--signal": r"B:USR1@[1-9]\d*",
    "--time": TIME,
}
PBS = {
    "-A": NAME,
    "-J": r"\d+-[1-9]\d*(:[1-9]\d*)?",
    "-M": r"[^@\s]+@[^@\s]+",
    "-N": r"[A-Za-z][A-Za-z0-9_.+-]{0,229}",
    "-j": "oe|eo|n",
    "-l": "|".join((
        rf"select={NUMBER}(:[a-z]+={NUMBER})*",
        rf"walltime={TIME}",
        "place=(free|scatter|pack|exclhost)",
        "filesystems=[a-z_:]+",
    )),
    "-m": "[abe]+|n",
    "-o": PATH,
    "-q": NAME,
    "-r": "[yn]",
}


def read_directives(script: str) -> dict[str, list[str]]:
    """Read the options of a script's head, each with its values; comments end the head."""
    shebang, *lines = script.splitlines()
    assert shebang in {"#!/bin/bash", "#!/bin/bash -l"}
    head = [line for line in lines if line.startswith(("#SBATCH", "#PBS"))]
    assert lines[: len(head)] == head, "a directive after the head is not read"
    assert len({line.split()[0] for line in head}) == 1
    found: dict[str, list[str]] = {}
    for line in head:
        mark, _, rest = line.partition(" ")
        option, _, value = rest.partition("=" if mark == "#SBATCH" else " ")
        shapes = SBATCH if mark == "#SBATCH" else PBS
        assert option in shapes, f"{line}: no manual has {option}"
        assert re.fullmatch(shapes[option], value), f"{line}: {value!r} is no value of it"
        assert option not in found or option == "-l", f"{line}: given twice"
        found.setdefault(option, []).append(value)
    return found
