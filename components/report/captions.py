"""Captions of the sections of a run report."""

TREE = (
    "Each run is a line below its parent node. A thin line is the run's budget, a thick line "
    "the tokens it has trained. All charts count tokens from the start of the root run: for a "
    "run that started from weights only, the parent's tokens are added. Diamonds are merged "
    "checkpoints, stars are evaluations, squares are exports."
)
RUNS = (
    "A run has the same color, marker and dash in every chart. Its own page has its events, "
    "data sources and whole recipe; the link is there if the page exists. Write a missing "
    "page with `python run.py action=report run=FOLDER`."
)
LOSS = (
    "Thin line: training loss of each step. Filled points: held-out loss with the sources "
    "weighted by their share of the mixture, which is comparable with the training loss. Open "
    "points: plain mean of the held-out losses over sources, which is not comparable with it. "
    "Dotted line: held-out loss of a smoothed unigram model of the training text with the "
    "same weights; a model below the line has learned more than word counts. Dashed line: the "
    "run resumed from a checkpoint."
)
THINNED = (
    " Runs with many steps: the charts of loss, learning rate, gradient norm and throughput "
    "show the lowest and highest value in each of {:,} equal intervals."
)
SOURCES = (
    "Filled: last evaluation. Open: before training (only on the page of a single run). "
    "Diamond: training loss of the last step, next to the mean that is comparable with it. "
    "Bar: smoothed unigram model, if the run recorded it. The sources are sorted by the first "
    "run's loss. To compare losses of different sources, compare their distances from the "
    "unigram model."
)
MIXTURE = "Share of each source in the samples drawn"
PROMISED = ", the recipe's share up to the last step, and the number of passes over the source"
EVALUATED = (
    "Measured by `action=evaluate`. Loss is in nats per token. Perplexity depends on the "
    "tokenizer of the run; bits per byte are comparable across tokenizers. Task scores are "
    "lm-eval's. Scores of a published list are percentages; published scores are as in their "
    "sources."
)
PROFILE = (
    "Time of the profiled steps by part, from the trace in `profile/`. The parts add up to "
    "the step. On a CPU the time of a part is the time of its operators on the main thread, "
    "on a device the time of its kernels. Host is the time that no operator or kernel covers."
)
PLANNED = (
    "Values that `action=plan` predicts, next to measured values. Planned energy is the rated "
    "power of all devices for the whole time. The row `as counted` includes only the time in "
    "which the energy counters were read."
)
ENERGY = (
    "Energy from the machine's counters, from the first step of each process to its end. "
    "Nothing is sampled or estimated. Discarded steps are included. A mean power of 1 W is 1 "
    "kWh per 1,000 device-hours."
)
PUBLISHED = (
    "Figures that the sources publish about the full-size run, next to this run's measurement "
    "of the same quantity, if there is one."
)
SMALL_RESULTS = (
    " The figures of a miniature show that the recipe runs. They do not reproduce a published "
    "result."
)
ASSUMED = (
    "Values that the recipe needs and its sources do not state. Each has the reason for the "
    "choice."
)
SMALL_COUNTS = (
    " The counts are for the full size; the scale rule that makes a miniature reduces them."
)
ARITHMETIC = (
    "FLOP of the model without recomputation, by two conventions. Full attention counts all "
    "pairs of positions; causal attention counts the pairs that the mask allows."
)
GOODPUT = (
    "Share of the time between the first start and the last record that produced the final "
    "weights, and the uses of the remaining time."
)
STORY = (
    "Events of the run, from `events.jsonl`. The step is the step of the weights after the "
    "event."
)
