#!/bin/bash
#PBS -N mula1b
#PBS -A <account>
#PBS -q prod
#PBS -l select=261
#PBS -l walltime=12:00:00
#PBS -r n
#PBS -j oe
#PBS -o /path/to/kochbuch/runs/mula1b-full/jobs/
# The output of this script is there; the output of the ranks is in ranks/JOB.log.

cd /path/to/kochbuch || exit
# The sources in brackets are those of conf/cluster/aurora.yaml.
source /path/to/kochbuch/.venv/bin/activate
PYTHONPATH="/path/to/kochbuch$(tr : '\n' <<< "${PYTHONPATH-}" | sed -n 's|^/|:/|p' | tr -d '\n')" && export PYTHONPATH PYTHONSAFEPATH=1  # no relative entry
node=/tmp/kochbuch-${PBS_JOBID%%.*}
# Compiled kernels stay on the node: a shared cache has race conditions (docs/environments.md).
for cache in TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR TORCH_EXTENSIONS_DIR NEO_CACHE_DIR SYCL_CACHE_DIR; do export "$cache=${!cache:-$node/cache/$cache}"; done
run=/path/to/kochbuch/runs/mula1b-full
mkdir -p "$run/ranks"

# Status 3 ends the chain; jobs/chain.jsonl contains the reason. It also queues the next job and is
# never rerun (-r n): a rerun would queue a second job.
python -m cluster.begin "$run" chain || exit $(($? != 3))

MASTER_PORT=$((20000 + ${PBS_JOBID%%[^0-9]*} % 10000))
export MASTER_ADDR MASTER_PORT
# Compiled kernels and copies of Python are deleted with the job.
remove_from_nodes() { timeout 300 mpiexec -n "$(wc -l < $run/preflight/hosts)" --ppn 1 --hostfile "$run/preflight/hosts" --pmi=pmix --label --line-buffer --cpu-bind none --no-abort-on-failure rm -rf "$node"; }
trap remove_from_nodes EXIT

# PBS sends no warning: 960 s before the time limit, the run gets the signal to save and stop.
(sleep 42240 && touch "$run/stop") &> /dev/null & alarm=$!
trap 'kill "$alarm" 2> /dev/null; remove_from_nodes' EXIT

launch() {
  MASTER_ADDR=$(head -n 1 "$PBS_NODEFILE")
  # Each node checks itself first; bad nodes are excluded, or the job ends (docs/preflight.md).
  timeout --kill-after=10 360 mpiexec -n "$(wc -l < $run/preflight/hosts)" --ppn 1 --hostfile "$run/preflight/hosts" --pmi=pmix --label --line-buffer --cpu-bind none --no-abort-on-failure \
    &> "$run/ranks/${PBS_JOBID%%.*}-preflight.log" python -m components.preflight "$run" & looking=$!
  python -m cluster.preflight "$run"
  status=$?
  timeout 5 tail --pid="$looking" -s 0.2 -f /dev/null; kill "$looking" 2> /dev/null; wait "$looking"
  [ "$status" -eq 0 ] || return "$status"
  nodes=$(wc -l < "$run/preflight/nodes")
  MASTER_ADDR=$(head -n 1 "$run/preflight/nodes")
  # Network ports: eight ports for twelve tiles; libfabric takes the nearest to a rank's cores.
  mpiexec -n $((nodes * 12)) --ppn 12 --hostfile "$run/preflight/nodes" --pmi=pmix --label --line-buffer \
    python -m components.train "$run" &>> "$run/ranks/${PBS_JOBID%%.*}.log"
}
# Failed ranks are relaunched on the job's good nodes, at most 5 times: cluster.end requests it with status 75.
while launch; python -m cluster.end "$run" $? $((42240 - SECONDS)); status=$?; [ "$status" -eq 75 ]; do
  python -m cluster.begin "$run" again || exit $(($? != 3))
done
(exit "$status")
