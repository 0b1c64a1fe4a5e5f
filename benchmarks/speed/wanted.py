"""What is asked of each figure that a benchmark finds.

The scripts judge by it, and `docs/speed.md` has it beside what was reached. Ratios say of what;
seconds are by the clock; the others are fractions. Where nobody asked for more, the peer is
what is asked for: as fast as it is a ratio of 1.
"""

THE_PEER = 1.0

# benchmarks.training.train_step: tokens a second by the peer's
LEAST_COMPILED_TO_EAGER = 1.15

# benchmarks.training.overlap: the peer's time by ours, and of what is exposed the hidden part
LEAST_OVERLAPPED, LEAST_HIDDEN = 0.95, 0.7

# benchmarks.training.loss: blocks by logits of all tokens
MOST_LOSS_MEMORY, MOST_LOSS_TIME = 0.25, 1.1

# benchmarks.training.whole_run
MOST_OUTSIDE, MOST_LOADING, MOST_FIRST_SECONDS = 0.03, 0.02, 12.0

# benchmarks.training.checkpoints: a stall by a synchronous save, throughput by dd's
MOST_STALL, LEAST_THROUGHPUT = 0.15, 0.70

# benchmarks.training.guards, benchmarks.training.profiler: a step with them by one without
MOST_GUARDED, MOST_IDLE = 1.01, 1.01

# benchmarks.training.evaluation_beside: a step by one beside the evaluation of another run
MOST_BESIDE = 1.01

# benchmarks.planning.worlds
MOST_WORLD_SECONDS = 30.0

# benchmarks.planning.planner_accuracy: medians on layouts that no constant has seen
MOST_WRONG_FITS, MOST_MEMORY_ERROR, MOST_TIME_ERROR, MOST_REGRET = 0.04, 0.08, 0.12, 0.05
