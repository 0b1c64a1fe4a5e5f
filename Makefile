# `make run` and `make test` need make and a Python of components/versions.py; they set up the rest.
SHELL := /bin/bash
# What the tests start again and again is compiled once, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python
# A site's own torch wins over the locked one, if it is new enough.
HAS_TORCH = $(PYTHON) -c 'import torch' && $(PYTHON) -m components.versions

.PHONY: help setup run test long cluster corpus attack check fix golden recipes chaos parity dryruns moved masters muon versions mutants drawn-mutants pages bench gpu gpu-pack megatron datatrove docs lock clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: .venv/ready ## build .venv from the lock

.venv/ready: requirements/dev.lock requirements/torch.txt requirements/deepspeed.lock requirements/data.lock requirements/evaluate.lock \
  requirements/tracking.lock requirements/fp8.lock
	@if { $(HAS_TORCH); } 2>/dev/null; then $(PYTHON) -m venv --system-site-packages .venv; else $(PYTHON) -m venv .venv; fi
	$(PY) -m pip install --quiet --require-hashes --no-deps -r requirements/dev.lock -r requirements/data.lock \
	  -r requirements/evaluate.lock -r requirements/tracking.lock -r requirements/fp8.lock
	@$(PY) -c 'import torch' 2>/dev/null || $(PY) -m pip install --quiet -r requirements/torch.txt
	DS_BUILD_OPS=0 $(PY) -m pip install --quiet --require-hashes --no-deps --no-build-isolation \
	  -r requirements/deepspeed.lock
	@touch $@

run: setup ## train the miniature of Teuken-7B here, on real text, and write its report
	$(PY) run.py recipe=teuken7b

# The tests of a folder or a file, or "changed": those of what is not committed yet.
ROOMS ?= tests
# Further options of pytest for `make long` and `make cluster`, such as those of tests/time_budget.py.
OPTIONS ?=

test: setup ## run the tests that any change may break; ROOMS=changed runs those of what a diff touches
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile -m "not cluster and not long" \
	  $(if $(filter changed,$(ROOMS)),$$($(PY) -m tests.changed),$(ROOMS))

long: setup ## run the tests that start many processes, and all cases of those of which make test runs a few (35 minutes)
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile -m "long and not cluster and not apart" $(OPTIONS)

cluster: setup ## train on a real Slurm of three and five nodes on this host, and follow the pages of the sites; needs root, slurm-wlm, munge and environment-modules (an hour)
	NEEDS_SLURM=1 $(PY) -m pytest -m cluster $(OPTIONS)

mutants: setup ## plant faults in a copy of the tree, one at a time; the test that names it has to fail; writes docs/testing.md (10 minutes)
	$(PY) -m tests.mutants

drawn-mutants: setup ## plant forty faults that SEED draws over engine, data, checkpoint, config and cluster; the tests that import the module have to catch 95 %
	$(PY) -m tests.mutants.drawn 40 $(or $(SEED),0)

pages: setup ## run every command of the pages for newcomers, and of the cookbook, as it is written (10 minutes)
	$(PY) -m pytest tests/house/test_commands_of_pages.py tests/house/test_cookbook.py

corpus: setup ## kill preparations of a corpus 20 times at random moments; the result is the same (3 minutes)
	OMP_NUM_THREADS=1 $(PY) -m tests.data_prep.killed 20

attack: setup ## attack the program with files and command lines of every kind: the whole corpus, 2,000 mutations, 600 tokenizers and text files (40 minutes)
	ATTACK_ALL=1 OMP_NUM_THREADS=1 $(PY) -m pytest tests/attack
	OMP_NUM_THREADS=1 $(PY) -m tests.attack.fuzz --seed 7 --cases 2000
	OMP_NUM_THREADS=1 $(PY) -m tests.attack.inputs --cases 600

check: setup ## style, types, imports: what must hold in every commit
	$(PY) -m ruff check --quiet --output-format concise .
	$(PY) -m ruff format --quiet --check .
	$(PY) -m mypy
	.venv/bin/lint-imports --no-logo

fix: setup ## mend what the tools can mend
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

golden: setup ## rewrite the golden files; read the diff before you commit it
	UPDATE_GOLDEN=1 $(PY) -m pytest tests/recipes tests/command/test_mistakes.py tests/command/test_show.py -q

recipes: setup ## train a hundred steps of every recipe's miniature and write the ledger (20 minutes)
	$(PY) -m benchmarks.ledger.miniatures

chaos: setup ## break runs in every way that can be rehearsed, and write the table of docs/fault_tolerance.md (half an hour)
	OMP_NUM_THREADS=1 $(PY) -m benchmarks.chaos.chaos

parity: setup ## prove layouts of every recipe equal to one process and write the ledger (half an hour)
	$(PY) -m benchmarks.ledger.parity

dryruns: setup ## rehearse every recipe's step at full size, without a GPU, and write docs/dryrun.md (an hour)
	$(PY) -m benchmarks.ledger.dryruns

moved: setup ## train in one layout, go on in others, compare the losses and print the table (5 minutes)
	$(PY) -m tests.life.moved

masters: setup ## train three miniatures with rounded weights and masters, and without, beside float32 weights, and keep the losses (15 minutes)
	$(PY) -m benchmarks.training.masters teuken7b playbook1b mula7b_a1b

muon: setup ## train a miniature by Muon and by AdamW from three seeds, and keep the held-out losses (10 minutes)
	$(PY) -m benchmarks.training.muon playbook1b

versions: setup ## try every torch of the range, each in an environment below ~/.cache/kochbuch, and write docs/versions.md; only="2.11.0 tests" tries that (hours, 25 GB)
	$(PY) -m benchmarks.versions.versions recipe=teuken7b $(only)

# A benchmark that misses a target ends with status 1; the others still run.
bench: setup ## run the benchmarks that this machine can run, and write docs/speed.md
	$(PY) -m benchmarks.peaks
	-$(PY) -m benchmarks.training.train_step
	-$(PY) -m benchmarks.training.checkpoints
	-$(PY) -m benchmarks.training.model
	-$(PY) -m benchmarks.training.loss
	-$(PY) -m benchmarks.training.scans
	-$(PY) -m benchmarks.training.moe
	-$(PY) -m benchmarks.training.dispatch
	-$(PY) -m benchmarks.training.overlap
	-$(PY) -m benchmarks.preparation.document_steps
	$(PY) -m benchmarks.planning.planner_accuracy
	$(PY) -m benchmarks.planning.planner_blind
	$(PY) -m benchmarks.planning.search gpt175b=39_321_600 mula220b_a10b=25_165_824 teuken7b=33_554_432
	-$(PY) -m benchmarks.planning.worlds recipe=gpt175b cluster=smng_p2
	-$(PY) -m benchmarks.training.parallel_overhead recipe=teuken7b
	-$(PY) -m benchmarks.training.guards recipe=teuken7b
	-$(PY) -m benchmarks.training.concurrent_evaluation
	-$(PY) -m benchmarks.training.expert_optimizer recipe=mula20b_a2b published=mula20b_a2b=1.36 \
	  published=mula100b_a7b=1.23 published=mula220b_a10b=1.07
	-$(PY) -m benchmarks.training.expert_variants recipe=mula20b_a2b
	-$(PY) -m benchmarks.training.profiler recipe=teuken7b
	-$(PY) -m benchmarks.training.whole_run recipe=teuken7b
	$(PY) -m benchmarks.speed

gpu: setup ## measure steps, pieces and peers on this machine's GPU (40 minutes)
	status=0; for part in A B C D E; do $(PY) -m benchmarks.gpu.drive part=$$part minutes=60 || status=1; done; \
	  $(PY) -m benchmarks.gpu.page; exit $$status

gpu-pack: setup ## collect in gpu/wheels what a GPU machine without a network lacks; there: gpu/run.sh A, B, C, D, E
	rm -rf gpu/wheels
	grep antlr4 requirements/gpu.txt | $(PY) -m pip wheel --quiet --no-deps -w gpu/wheels -r /dev/stdin  # has no wheel
	$(PY) -m pip download --quiet --no-deps -d gpu/wheels -f gpu/wheels --python-version 3.12 --implementation cp \
	  --only-binary=:all: --abi=cp312 --abi=abi3 --abi=none --platform=manylinux_2_28_x86_64 \
	  --platform=manylinux_2_17_x86_64 --platform=manylinux2014_x86_64 --platform=any -r requirements/gpu.txt

megatron: .venv/megatron ## compare data files with megatron-core, in an environment of its own (10 minutes)
	$(PY) -m benchmarks.preparation.megatron_files .venv/megatron/bin/python
	$(PY) -m benchmarks.preparation.data_open .venv/megatron/bin/python

datatrove: setup ## compare the preparation of a corpus with datatrove, on text from Debian's packages (two hours; needs apt-get)
	-$(PY) -m benchmarks.preparation.data_prep prepared/manuals
	$(PY) -m benchmarks.preparation.corpus_memory recipe=mula1b prepared/manuals

.venv/megatron: .venv/ready
	$(PY) -m venv $@
	$@/bin/python -m pip install --quiet --no-deps megatron-core==0.16.1
	$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$($@/bin/python -c \
	  'import sysconfig; print(sysconfig.get_path("purelib"))')/house.pth

docs: .venv/docs ## build the site of docs/ into site/, in an environment of its own
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $</bin/mkdocs build --strict --quiet
	@echo site/index.html

.venv/docs: requirements/docs.lock
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --require-hashes --no-deps -r $<
	@touch $@

lock: ## resolve requirements/*.in again (needs uv)
	for part in run dev deepspeed data evaluate tracking fp8 docs; do \
	  uv pip compile --universal --generate-hashes --python-version 3.11 --no-header --no-annotate \
	    --no-emit-package torch --override requirements/no_torch.txt \
	    $$( [ $$part = run ] || [ $$part = docs ] || echo "--constraints requirements/run.lock" ) \
	    $$( [ $$part != data ] || echo "--constraints requirements/dev.lock" ) \
	    $$( [ $$part != evaluate ] || echo "--constraints requirements/dev.lock --constraints requirements/data.lock" ) \
	    $$( [ $$part != tracking ] || for other in dev data evaluate; do echo "--constraints requirements/$$other.lock"; done ) \
	    requirements/$$part.in -o requirements/$$part.lock; done

clean: ## remove what was built; runs/ and prepared/ stay
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
