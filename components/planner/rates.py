"""Rates and utilisation in every convention, named.

``full`` counts the whole attention matrix, ``causal`` half of it, ``hardware`` adds what is
computed twice to ``full`` (Korthikanti et al. 2022, arXiv 2205.05198, section 6.3, model and
hardware FLOPs). Peaks are the vendor's for dense products.
"""

from dataclasses import dataclass

from components.planner.conventions import flops_by_convention
from components.planner.job import Job
from components.planner.products import layer_products
from components.planner.time import again_fraction
from components.spec.derived import FlopsPerToken
from components.spec.hardware import Hardware


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Tokens a second, and the same as TFLOP/s a device and as parts of the peak."""

    tokens_per_second: float
    tokens_per_second_per_device: float
    tflops_full: float
    tflops_causal: float
    tflops_hardware: float
    peak_teraflops: float
    tflops_by_convention: dict[str, float]

    def as_json(self) -> dict[str, object]:
        return {
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_second_per_device": self.tokens_per_second_per_device,
            "tflops_per_device_full": self.tflops_full,
            "tflops_per_device_causal": self.tflops_causal,
            "tflops_per_device_hardware": self.tflops_hardware,
            "tflops_per_device_by_convention": self.tflops_by_convention,
            "mfu_full": self.tflops_full / self.peak_teraflops,
            "mfu_causal": self.tflops_causal / self.peak_teraflops,
            "hfu": self.tflops_hardware / self.peak_teraflops,
        }


def rates(job: Job, hardware: Hardware, step_seconds: float) -> Rates:
    """Turn a step's seconds into rates."""
    flops = FlopsPerToken.of(job.shape, job.sequence_length)
    counted = flops_by_convention(job.shape, job.sequence_length, pipeline=job.layout.pipeline)
    device = job.tokens_per_step / step_seconds / job.layout.ranks
    return Rates(
        tokens_per_second=device * job.layout.ranks,
        tokens_per_second_per_device=device,
        tflops_full=flops.full * device / 1e12,
        tflops_causal=flops.causal * device / 1e12,
        tflops_hardware=hardware_flops(job, flops) * device / 1e12,
        peak_teraflops=hardware.peak_teraflops[job.compute],
        tflops_by_convention={name: count * device / 1e12 for name, count in counted.items()},
    )


def hardware_flops(job: Job, flops: FlopsPerToken) -> float:
    """Add the forward pass of what is recomputed; attention counts in full."""
    products, attention = again_fraction(job)
    forward = sum(product.flops for product in layer_products(job)) * job.layout.tensor
    width = job.shape.attention.num_heads * job.shape.attention.head_dim
    again = products * forward / job.microbatch_tokens
    again += attention * 4 * width * job.sequence_length
    return flops.full + job.shape.num_layers * again
