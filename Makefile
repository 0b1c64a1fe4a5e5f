# `make run` and `make test` need Python 3.11 or newer and make; they set up the rest.
SHELL := /bin/bash
# What the tests start again and again is compiled once, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python
# A site's own torch wins over the locked one, if it is new enough.
HAS_TORCH = $(PYTHON) -c 'import sys, torch; sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10))'

LAYOUTS = {data: 3, zero: 0}, {data: 2, zero: 1}, {data: 2, zero: 2}, {data: 2, zero: 3}, \
  {data: 4, data_shard: 2, zero: 1}, {data: 4, data_shard: 2, zero: 3}, \
  {pipeline: 2, schedule: gpipe}, {pipeline: 2, schedule: 1f1b}, \
  {pipeline: 2, schedule: interleaved, stages_per_rank: 2}, \
  {pipeline: 2, schedule: zero_bubble, stages_per_rank: 2}, \
  {tensor: 2, sequence_parallel: false}, {tensor: 4, pipeline: 2}, \
  {context: 2, tensor: 2}, {context: 4}, {data: 2, context: 2, zero: 3}
DEEPSPEED = {engine: deepspeed, data: 2, zero: 0}, {engine: deepspeed, data: 2, zero: 1}, \
  {engine: deepspeed, data: 2, zero: 2}, {engine: deepspeed, data: 2, zero: 3}
EXPERTS = {data: 2, zero: 1}, {expert: 2, zero: 1}, {expert: 4, zero: 1}, \
  {expert: 4, zero: 1, expert_dispatch: all_to_all}, {data: 2, expert: 2, zero: 2}, \
  {data: 2, expert: 2, zero: 1, expert_aware: false}, {expert: 2, context: 2, zero: 1}

.PHONY: help setup run test long cluster corpus check fix golden recipes parity dryruns moved bench megatron lock clean

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: .venv/ready ## build .venv from the lock

.venv/ready: requirements/dev.lock requirements/torch.txt requirements/deepspeed.lock requirements/data.lock
	@if $(HAS_TORCH) 2>/dev/null; then $(PYTHON) -m venv --system-site-packages .venv; else $(PYTHON) -m venv .venv; fi
	$(PY) -m pip install --quiet --require-hashes --no-deps -r requirements/dev.lock -r requirements/data.lock
	@$(PY) -c 'import torch' 2>/dev/null || $(PY) -m pip install --quiet -r requirements/torch.txt
	DS_BUILD_OPS=0 $(PY) -m pip install --quiet --require-hashes --no-deps --no-build-isolation \
	  -r requirements/deepspeed.lock
	@touch $@

run: setup ## train the miniature of Teuken-7B here, on real text, and write its report
	$(PY) run.py recipe=teuken7b

test: setup ## run the tests
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile -m "not cluster and not quiet and not long"

long: setup ## run the tests that start many processes for minutes (8 minutes)
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile -m "long and not quiet"

cluster: setup ## train on a real Slurm of three nodes on this host; needs root, slurm-wlm and munge (23 minutes)
	NEEDS_SLURM=1 $(PY) -m pytest -m cluster

corpus: setup ## kill preparations of a corpus 20 times at random moments; the result is the same (3 minutes)
	OMP_NUM_THREADS=1 $(PY) -m tests.data_prep.killed 20

check: setup ## style, types, imports: what must hold in every commit
	$(PY) -m ruff check --quiet --output-format concise .
	$(PY) -m ruff format --quiet --check .
	$(PY) -m mypy
	.venv/bin/lint-imports --no-logo

fix: setup ## mend what the tools can mend
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

golden: setup ## rewrite the golden files; read the diff before you commit it
	UPDATE_GOLDEN=1 $(PY) -m pytest tests/recipes -q

recipes: setup ## train a hundred steps of every recipe's miniature and print the table (20 minutes)
	$(PY) -m benchmarks.miniatures

parity: setup ## prove every kind of layout equal to one process and print the table (20 minutes)
	$(PY) run.py action=parity recipe=bloom176b cluster.ranks=8
	$(PY) run.py action=parity recipe=gpt175b cluster.ranks=8
	$(PY) run.py action=parity recipe=teuken7b cluster.ranks=8 "layouts=[$(LAYOUTS)]"
	$(PY) run.py action=parity recipe=teuken7b model.num_layers=7 "layouts=[{pipeline: 3}]"
	$(PY) run.py action=parity recipe=mula220b_a10b cluster.ranks=8
	$(PY) run.py action=parity recipe=mula7b_a1b "layouts=[$(EXPERTS)]"
	$(PY) run.py action=parity recipe=teuken7b "layouts=[$(DEEPSPEED)]"
	$(PY) run.py action=parity recipe=bloom560m "layouts=[{context: 2}]"
	$(PY) run.py action=parity recipe=gpt3b6 "layouts=[{context: 2, pipeline: 2}]"

dryruns: setup ## rehearse every recipe's step at full size, without a GPU, and write docs/dryruns.md (an hour)
	$(PY) -m pytest -m quiet
	$(PY) -m benchmarks.dryruns

moved: setup ## train in one layout, go on in others, compare the losses and print the table (5 minutes)
	$(PY) -m tests.life.moved

bench: setup ## run the benchmarks that this machine can run
	$(PY) -m benchmarks.peaks
	$(PY) -m benchmarks.train_step
	$(PY) -m benchmarks.checkpoints
	$(PY) -m benchmarks.model
	$(PY) -m benchmarks.loss
	$(PY) -m benchmarks.moe
	$(PY) -m benchmarks.document_steps
	$(PY) -m benchmarks.planner_accuracy
	$(PY) -m benchmarks.planner_blind
	$(PY) -m benchmarks.search gpt175b=39_321_600 mula220b_a10b=25_165_824 teuken7b=33_554_432
	$(PY) -m benchmarks.worlds recipe=gpt175b cluster=smng_p2
	$(PY) -m benchmarks.parallel_overhead recipe=teuken7b
	$(PY) -m benchmarks.guards recipe=teuken7b
	$(PY) -m benchmarks.expert_optimizer recipe=mula20b_a2b published=mula20b_a2b=1.36 \
	  published=mula100b_a7b=1.23 published=mula220b_a10b=1.07

megatron: .venv/megatron ## compare data files with megatron-core, in an environment of its own (10 minutes)
	$(PY) -m benchmarks.megatron_files .venv/megatron/bin/python
	$(PY) -m benchmarks.data_open .venv/megatron/bin/python

.venv/megatron: .venv/ready
	$(PY) -m venv $@
	$@/bin/python -m pip install --quiet --no-deps megatron-core==0.16.1
	$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$($@/bin/python -c \
	  'import sysconfig; print(sysconfig.get_path("purelib"))')/house.pth

lock: ## resolve requirements/*.in again (needs uv)
	for part in run dev deepspeed data; do \
	  uv pip compile --universal --generate-hashes --python-version 3.11 --no-header --no-annotate \
	    --no-emit-package torch --override requirements/no_torch.txt \
	    $$( [ $$part = run ] || echo "--constraints requirements/run.lock" ) \
	    $$( [ $$part != data ] || echo "--constraints requirements/dev.lock" ) \
	    requirements/$$part.in -o requirements/$$part.lock; done

clean: ## remove what was built; runs/ and prepared/ stay
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
