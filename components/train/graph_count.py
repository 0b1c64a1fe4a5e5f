"""How many graphs torch's compiler made for a run: few, and all of them early."""

from components.torch_internals.compiler import count_graphs
from components.train.callback import RunCallback
from components.train.module import Pretraining

_SETTLED = 2  # steps; by then every kind of layer had its batch


class GraphCount(RunCallback):
    """Count the graphs of this rank's process; those made after its second step are recompiles.

    A recompile stops the ranks for as long as the compiler takes, tens of seconds.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._graphs = 0

    def on_step(self, module: Pretraining) -> None:
        self._steps += 1
        if self._steps <= _SETTLED:
            self._graphs = count_graphs()

    @property
    def figures(self) -> dict[str, int]:
        """``graphs`` of the process, and ``recompiles``, those of them that came late."""
        graphs = count_graphs()
        late = graphs - self._graphs if self._steps > _SETTLED else 0
        return {"graphs": graphs, "recompiles": late}
