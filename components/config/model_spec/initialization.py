"""Specification of first weights."""

from typing import ClassVar, Literal

from components.config.schema.part import ModelPartSpec
from components.ranges import NonNegative, Positive


class NormalSpec(ModelPartSpec):
    """Standard deviations of the normal distributions that first weights are drawn from.

    ``std: fan_in`` is ``min(1, sqrt(A / B)) / sqrt(B)`` for a map of B inputs to A outputs
    (https://arxiv.org/abs/2310.17813, section 3, as nanochat has it). ``residual: scaled``
    divides the deviation of maps onto the residual stream by ``sqrt(2 num_layers)`` (the GPT-2
    report, section 2.3, as Megatron's ``scaled_init_method_normal`` has it). ``plain`` draws
    them like other maps; ``zero`` starts them at 0. Embedding and head may have deviations of
    their own. The embedding of ``padding_row``, a token that no text contains, starts at zero.
    Values beyond ``cutoff`` deviations are drawn again, as ``torch.nn.init.trunc_normal_``
    does: ``std`` is the deviation of the distribution before the cut. A decoder keeps these
    settings as they are; no other object is built from them.
    """

    target: ClassVar[str] = "components.model.initialization.Normal"

    std: NonNegative | Literal["fan_in"]
    residual: Literal["scaled", "plain", "zero"]
    padding_row: int | None
    cutoff: Positive | None = None
    embedding_std: NonNegative | None = None
    head_std: NonNegative | None = None

    @property
    def ends(self) -> dict[str, float | None]:
        """Deviations of the embedding and of the head, where they have their own."""
        return {"embedding": self.embedding_std, "head": self.head_std}

    @property
    def initializer_range(self) -> float:
        """The deviation that Hugging Face states; its default if each map has its own."""
        return 0.02 if self.std == "fan_in" else self.std
