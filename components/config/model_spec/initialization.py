"""Specification of initial weights."""

from typing import ClassVar, Literal

from components.config.schema.part import ModelPartSpec
from components.ranges import NonNegative, Positive


class NormalSpec(ModelPartSpec):
    """Standard deviations of the normal distributions of initial weights.

    ``std: fan_in`` is ``min(1, sqrt(A / B)) / sqrt(B)`` for a map of B inputs to A outputs
    (https://arxiv.org/abs/2310.17813, section 3, as in nanochat). ``residual: scaled`` divides
    the deviation of maps onto the residual stream by ``sqrt(2 num_layers)`` (the GPT-2 report,
    section 2.3, as in Megatron's ``scaled_init_method_normal``); with ``plain`` they are drawn
    like other maps, with ``zero`` they start at 0. ``embedding_std`` and ``head_std`` replace
    ``std``. The embedding of ``padding_row``, a token that no text contains, starts at zero.
    Values beyond ``cutoff`` deviations are drawn again, as in ``torch.nn.init.trunc_normal_``:
    ``std`` is the deviation before the cut.
    """

    target: ClassVar[str] = "components.model.initialization.Normal"

    std: NonNegative | Literal["fan_in"]
    residual: Literal["scaled", "plain", "zero"]
    padding_row: int | None
    cutoff: Positive | None = None
    embedding_std: NonNegative | None = None
    head_std: NonNegative | None = None

    @property
    def embedding_and_head_std(self) -> dict[str, float | None]:
        """Deviations of the embedding and of the head; None if not set."""
        return {"embedding": self.embedding_std, "head": self.head_std}

    @property
    def initializer_range(self) -> float:
        """Hugging Face's ``initializer_range``; its default with ``std: fan_in``."""
        return 0.02 if self.std == "fan_in" else self.std
