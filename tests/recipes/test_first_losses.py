"""The first loss of a miniature of each family: a golden table that code changes, too.

The table of composed recipes shows changed settings; a changed formula of initial weights, of a
layer or of the loss shows here.
"""

import re
from pathlib import Path
from typing import Any

import torch

from components.build import build_node
from components.config.schema.types import to_plain
from components.engine.parallelize import draw_weights
from tests.recipes.compositions import RECIPES, composed
from tests.recipes.golden_files import Row, check_table

LOSSES = Path(__file__).parent / "golden" / "losses.csv"
FAMILIES = {re.split(r"_?\d", name)[0]: name for name in RECIPES}
LENGTH = 32


def loss_row(name: str) -> Row:
    """Compute the loss and the norm of its gradient in float64, on random tokens."""
    recipe = composed(name, "mini")
    model = to_plain(recipe.model)
    for section in (model, model["attention"]):
        if "dropout" in section:
            section["dropout"] = 0.0  # its random numbers depend on the processor
    decoder: Any = build_node(model, "model")
    draw_weights(decoder, seed=5)
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(recipe.decoder_spec.vocab_size, (2, LENGTH + 1), generator=generator)
    loss = decoder.double().compute_loss(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    gradients = [weight.grad for weight in decoder.parameters() if weight.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack([grad.norm() for grad in gradients]))
    return {
        "recipe": name,
        "loss": f"{loss.item():.7f}",
        "gradient_norm": f"{norm.item():.6g}",
        "weights_with_gradient": str(len(gradients)),
    }


def test_the_first_losses_are_those_of_the_golden_table() -> None:
    check_table(LOSSES, list(map(loss_row, FAMILIES.values())), ["recipe"])
