"""Time that pipeline ranks wait, as a fraction of the time that they work.

p ranks, m microbatches, v stages a rank; the backward pass takes twice the forward pass.
"""


def bubble_fraction(*, schedule: str, pipeline: int, microbatches: int, stages: int) -> float:
    """Return the ideal bubble of a schedule.

    (p - 1) / m for GPipe (Huang et al. 2019, arXiv 1811.06965, section 2.3) and 1F1B, which
    only keeps less (Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1); divided by v
    interleaved (section 2.2.2). Zero bubble fills two thirds of the rest with weight gradients:
    (p - 1) / 3 m (Qi et al. 2023, arXiv 2401.10241, table 2, ZB-H1, with t_F = t_B = t_W).
    """
    if pipeline == 1:
        return 0.0
    fraction = (pipeline - 1) / microbatches
    if schedule == "interleaved":
        return fraction / stages
    return fraction / (3 * stages) if schedule == "zero_bubble" else fraction


def naive_bubble(pipeline: int) -> float:
    """One microbatch at a time: p - 1 (Ultra-Scale Playbook, "Splitting layers")."""
    return float(pipeline - 1)
