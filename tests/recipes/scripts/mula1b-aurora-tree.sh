#!/bin/bash -l
#PBS -N mula1b
#PBS -A <account>
#PBS -q prod
#PBS -l select=261
#PBS -l walltime=12:00:00
#PBS -l filesystems=flare
#PBS -l place=scatter
#PBS -r n
#PBS -j oe
#PBS -o /path/to/kochbuch/runs/mula1b-full/jobs/
# What this script says is there; what the ranks say is in ranks/JOB.log beside.

cd /path/to/kochbuch || exit
# The sources in brackets are those of conf/cluster/aurora.yaml.
module load frameworks
export ZE_FLAT_DEVICE_HIERARCHY=FLAT  # a rank is a tile (ALCF)
export CCL_PROCESS_LAUNCHER=pmix  # mpiexec starts ranks by PMIx (ALCF; OPT has none)
export CCL_ATL_TRANSPORT=mpi  # as ALCF and OPT; GPT has ofi
export CCL_KVS_MODE=mpi  # ranks find each other so on 1,024 nodes (ALCF, OPT ffe3e59; commented out in OPT b87d464)
export CCL_KVS_USE_MPI_RANKS=1  # goes with it (ALCF, OPT)
export CCL_KVS_CONNECTION_TIMEOUT=600  # seconds; large jobs start slowly (ALCF; OPT has none)
export CCL_KVS_GET_TIMEOUT=600  # seconds, against timeouts of the ranks' store (OPT; ALCF has it for TensorFlow alone)
export CCL_OP_SYNC=1  # against hangs (ALCF); without it expert ranks hung (GPT)
export CCL_ATL_SYNC_COLL=1  # goes with it (ALCF)
export CCL_WORKER_COUNT=1  # one thread of oneCCL a rank (OPT)
export CCL_WORKER_AFFINITY=5,13,21,29,37,45,57,65,73,81,89,97  # beside the ranks' cores (OPT)
export CCL_ZE_CACHE_OPEN_IPC_HANDLES_THRESHOLD=32768  # else the cache of handles fills up (OPT, GPT; ALCF has 1024)
export CCL_ZE_CACHE_GET_IPC_HANDLES_THRESHOLD=32768  # goes with it (OPT; ALCF has none)
export CCL_SYCL_SCALEOUT_HOST_BUF_SIZE=2147483648  # 2 GiB: the default is too small for a message of 1,207,959,552 bytes (OPT; ALCF has none)
export CCL_CHECK_INPLACE_ALIASING=0  # no check of buffers of an all-gather in place (OPT; ALCF has none)
export ForceExtendedUSMBufferSize=256  # against segmentation faults (OPT; ALCF has none)
export FI_MR_CACHE_MONITOR=userfaultfd  # ALCF's smallest set, tested to 1,024 nodes
export FI_CXI_DEFAULT_CQ_SIZE=1048576  # event queues overflow (ALCF)
export TMPDIR=/tmp  # the path of a socket has 107 bytes (ALCF)
export PALS_PING_PERIOD=240  # a node that answers no ping for 120 s ends the launch (ALCF)
export PALS_RPC_TIMEOUT=240  # goes with it (ALCF)
export http_proxy=http://proxy.alcf.anl.gov:3128 https_proxy=http://proxy.alcf.anl.gov:3128  # the one way out
export no_proxy='admin,*.hostmgmt.cm.aurora.alcf.anl.gov,*.hsn.cm.aurora.alcf.anl.gov,*.alcf.anl.gov,.alcf.anl.gov,localhost,127.0.0.1'  # nodes reach each other past it
source /path/to/kochbuch/.venv/bin/activate
PYTHONPATH="/path/to/kochbuch$(tr : '\n' <<< "${PYTHONPATH-}" | sed -n 's|^/|:/|p' | tr -d '\n')" && export PYTHONPATH PYTHONSAFEPATH=1  # no relative entry
node=/tmp/kochbuch-${PBS_JOBID%%.*}
# Compiled kernels stay on the node: in a cache that nodes share they race (docs/environments.md).
for cache in TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR TORCH_EXTENSIONS_DIR NEO_CACHE_DIR SYCL_CACHE_DIR; do export "$cache=${!cache:-$node/cache/$cache}"; done
run=/path/to/kochbuch/runs/mula1b-full
mkdir -p "$run/ranks"

# What follows from the run's checkpoints is submitted when they are there, also of a run that has ended.
grow() { "$@" python -m command.tree.course "$run" &>> "$run/jobs/children.log"; }
grow
# By 3 this ends the chain, and jobs/chain.jsonl says why. It queues the next job, too, and is
# itself never run again (-r n): it would queue a second one.
python -m cluster.begin "$run" chain || exit $(($? != 3))

MASTER_PORT=$((20000 + ${PBS_JOBID%%[^0-9]*} % 10000))
export MASTER_ADDR MASTER_PORT
# Compiled kernels and copies of Python go with the job.
remove_from_nodes() { timeout 300 mpiexec -n "$(wc -l < $run/preflight/hosts)" --ppn 1 --hostfile "$run/preflight/hosts" --pmi=pmix --label --line-buffer --cpu-bind none --no-abort-on-failure rm -rf "$node"; }
trap remove_from_nodes EXIT

# PBS gives no warning: 960 s before the wall the run is told to save and stop.
(sleep 42240 && touch "$run/stop") &> /dev/null & alarm=$!
trap 'kill "$alarm" 2> /dev/null; remove_from_nodes' EXIT

launch() {
  MASTER_ADDR=$(head -n 1 "$PBS_NODEFILE")
  # Each node looks at itself first; what is bad is left out, or the job ends (docs/preflight.md).
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
    --cpu-bind list:2-4:10-12:18-20:26-28:34-36:42-44:54-56:62-64:70-72:78-80:86-88:94-96 \
    python -m components.train "$run" &>> "$run/ranks/${PBS_JOBID%%.*}.log"
}
# Told to end, it first lets a submission that is under way be noted.
(trap 'kill $!; wait $!; exit' TERM; while sleep 60 & wait $!; do grow exec & wait $!; done) & growing=$!
# What fails is launched again, 5 times at most, on the job's good nodes: cluster.end asks for it by 75.
while launch; python -m cluster.end "$run" $? $((42240 - SECONDS)); status=$?; [ "$status" -eq 75 ]; do
  python -m cluster.begin "$run" again || exit $(($? != 3))
done
(exit "$status")
status=$?
kill "$growing" 2> /dev/null
timeout 30 tail --pid="$growing" -s 0.2 -f /dev/null
grow
(exit "$status")
