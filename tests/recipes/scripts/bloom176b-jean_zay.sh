#!/bin/bash
#SBATCH --job-name=bloom176b
#SBATCH --account=<account>@a100
#SBATCH --qos=qos_gpu-gc
#SBATCH --nodes=48
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --partition=gpu_p5
#SBATCH --constraint=a100
#SBATCH --gres=gpu:8
#SBATCH --hint=nomultithread
#SBATCH --time=100:00:00
#SBATCH --signal=B:USR1@2040
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --array=1-49%1
#SBATCH --output=/path/to/kochbuch/runs/bloom176b-full/jobs/%A_%a.log
# What this script says is there; what a rank says, rank 0 too, is in ranks/JOB-RANK.log beside.

# The sources in brackets are those of conf/cluster/jean_zay.yaml.
module purge
module load arch/a100
source /path/to/kochbuch/.venv/bin/activate
cd /path/to/kochbuch || exit
run=/path/to/kochbuch/runs/bloom176b-full
mkdir -p "$run/ranks"
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun takes it no more from sbatch, since 22.05

# By 3 this ends the chain: the run has finished, was cancelled, or two jobs made no progress.
python -m cluster.begin "$run" || exit $(($? != 3))

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

trap 'touch "$run/stop"' USR1  # 2040 s before the wall: the run saves and stops

# One task a rank. Network ports: four ports for eight devices; NCCL chooses.
srun --kill-on-bad-exit=1 --wait=60 --output="$run/ranks/%j-%t.log" \
  python -m components.train "$run" &
wait $!
status=$?
[ "$status" -le 128 ] || { wait $!; status=$?; }  # the signal ended the first wait, not the ranks

python -m cluster.end "$run" "$status"  # says what happened; its status is the job's
