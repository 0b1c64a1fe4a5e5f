"""Which layers each pipeline stage holds.

Stages are contiguous and as even as they can be. What does not divide goes to the middle: the
first stage holds the embedding and, under 1F1B, the activations of the most microbatches; the
last one holds the head and the logits.
"""

from typing import Literal

from components.errors import RecipeError

Balance = Literal["layers", "layers_and_ends"]


def stage_layers(num_layers: int, stages: int, balance: Balance) -> tuple[range, ...]:
    """Cut ``num_layers`` into one contiguous range a stage, at least one layer each.

    ``layers`` evens out the layers alone; ``layers_and_ends`` counts the embedding and the head
    as one layer each, as DeepSpeed's ``partition_method='type:transformer|embedding'`` does.
    Layers are dealt one by one to the stage with the least, the one nearest the middle first.

    Raises:
        RecipeError: there are more stages than layers.
    """
    if stages > num_layers:
        raise RecipeError(
            "parallelism.pipeline",
            f"{stages} stages for {num_layers} layers would leave some without a layer",
            f"pipeline x stages_per_rank may be {num_layers} at most",
        )
    load = [1] * stages
    if balance == "layers_and_ends":
        load[0] += 1
        load[-1] += 1
    counts = [1] * stages
    for _ in range(num_layers - stages):
        taker = min(range(stages), key=lambda stage: (load[stage], abs(2 * stage - stages + 1)))
        load[taker] += 1
        counts[taker] += 1
    starts = [sum(counts[:stage]) for stage in range(stages)]
    return tuple(range(start, start + n) for start, n in zip(starts, counts, strict=True))
