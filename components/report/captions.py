"""What explains the sections of a report of runs."""

TREE = (
    "Each run is a line below the node that it comes from: thin its budget, thick what it has "
    "done. Tokens are the trunk's, in the charts below, too: what a parent had seen is added "
    "to those of a run that began with weights alone. Diamonds are merged checkpoints, stars "
    "evaluations, squares exports."
)
RUNS = (
    "A run has the same colour, mark and dash in every chart. Events, sources and whole recipe "
    "of a run are on its own page, linked if it is there: `python run.py action=report "
    "run=FOLDER`."
)
LOSS = (
    "Thin: each step's training loss. Filled points: loss on held-out text, each source "
    "weighted by its share of the mixture there, so that it compares with the training loss. "
    "Open points: its plain mean over sources, which does not compare. Dotted: what a smoothed "
    "unigram model of the training text gives on the held-out text, weighted alike; a model "
    "below it has learnt more than word counts. Dashed: the run went on from a checkpoint."
)
THINNED = (
    " Of a run with many steps, this chart and those of rate, gradient and throughput have the "
    "lowest and the highest value of each of {:,} equal stretches."
)
SOURCES = (
    "Filled: the last evaluation. Open, of a run alone: before training. Diamond: the last "
    "step's training loss, beside the mean that it compares with. Bar: the smoothed unigram, "
    "where the run states it. Below the means the first run's lowest loss first. Losses of "
    "different sources compare only through their unigrams."
)
MIXTURE = "Each source's part of the samples that were drawn"
PROMISED = ", beside what the recipe promised up to the last step; and how often it was read"
EVALUATED = (
    "By `action=evaluate`. Loss in nats a token; perplexity is of this run's tokenizer, bits a "
    "byte compare across tokenizers. Tasks are lm-eval's, with its own figures; of a list, "
    "scores are per cent, published ones as their sources have them."
)
PROFILE = (
    "Where the time of the profiled steps went, from the trace in `profile/`; the parts add up "
    "to the step. On a CPU a part's time is that of its operators on the main thread, on a "
    "device that of its kernels. Host is what no operator or kernel covers."
)
PRODUCTS = (
    "FLOP count the whole matrix of attention. The limit is the lower of what the cluster's "
    "profile says of large products and of its memory times FLOP/byte; without such figures "
    "there is none."
)
WAITS = (
    "Calls in a step that make the host wait for its device. On a CPU nothing waits; they "
    "would on a device."
)
NO_WAITS = "No call in the profiled steps makes the host wait for its device."
PLANNED = (
    "What `action=plan` says before a run, beside what was measured. Planned energy is the "
    "rated power of all devices at all times; as counted is for the time in which their "
    "counters were read."
)
ENERGY = (
    "The counters of the machine, from the first step of each process to its end: nothing is "
    "sampled or estimated. Discarded steps are part of it. The power of "
    "a device in watts is also its kWh in a thousand device-hours."
)
PUBLISHED = (
    "What the sources state of the full-size work, and what was measured here of the same "
    "quantity, if it was."
)
SMALL_RESULTS = (
    " A miniature's figures show that the recipe runs; they repeat no published result."
)
ASSUMED = (
    "Values that the recipe needs and that its sources lack. Each was chosen here, for the "
    "reason given."
)
SMALL_COUNTS = (
    " They are those of the full size; the rule that makes a miniature shrinks counts further."
)
ARITHMETIC = (
    "FLOP of the model, without what recomputation adds, under both conventions: full "
    "attention counts every pair of positions, causal attention only those that the mask lets "
    "through."
)
GOODPUT = (
    "The part of the time, from the first start to the last record, that made the last "
    "weights; and where the rest went."
)
STORY = (
    "Events of the run, from `journal.jsonl`. The step is the step of the weights after the "
    "event."
)
