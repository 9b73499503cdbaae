"""How others keep a Slurm job going: one batch script each, as their users write it.

Each trains the same program on two of its nodes and resumes from the newest checkpoint by itself.
The settings are the quick ones; with Slurm's and torch's defaults all of them take longer.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """\
#!/usr/bin/env bash
#SBATCH --ntasks-per-node=1 --gpus-per-node=8 --exclusive --open-mode=append
set -u
export MASTER_PORT=$((20000 + RANDOM % 20000)) PYTHONUNBUFFERED=1
nodes() { scontrol show hostnames "$(squeue --noheader --job "$SLURM_JOB_ID" --format %N)"; }
"""

COLD = """\
export MASTER_ADDR=$(nodes | head -n 1)
date +%s.%N >"$MUSTER_RUN_DIR/started"
srun --nodes=2 --ntasks=2 --kill-on-bad-exit=1 $PROGRAM
"""

REQUEUE = """\
export MASTER_ADDR=$(nodes | head -n 1)
srun --nodes=2 --ntasks=2 --kill-on-bad-exit=1 $PROGRAM && exit
scontrol requeue "$SLURM_JOB_ID" && sleep 60
"""

# A new step on the nodes that Slurm still counts to the job: it has to find out first.
LOOP = """\
until
  mapfile -t all < <(nodes)
  export MASTER_ADDR=${all[0]} MASTER_PORT=$((MASTER_PORT + 1))
  srun --overlap --no-kill --nodes=2 --ntasks=2 --kill-on-bad-exit=1 \\
    --nodelist="${all[0]},${all[1]}" $PROGRAM
do sleep 0.2; done
"""

TORCHRUN = """\
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # else torch 2.13 never comes back
srun --no-kill --nodes=3 --ntasks=3 --kill-on-bad-exit=0 --wait=0 \\
  python -m torch.distributed.run --nnodes=2 --nproc-per-node=1 --max-restarts=9 \\
  --rdzv-backend=c10d --rdzv-id="$SLURM_JOB_ID" --rdzv-conf=keep_alive_interval=1 \\
  --rdzv-endpoint="$(nodes | head -n 1):$MASTER_PORT" --monitor-interval=0.1 ${PROGRAM#python }
"""


@dataclass(frozen=True)
class Way:
    """One batch script with its options for sbatch."""

    name: str
    script: str
    options: tuple[str, ...]
    faults: tuple[str, ...]


WAYS = (
    Way(
        "--requeue, tuned Slurm",
        HEAD + REQUEUE,
        ("--nodes=2", "--requeue"),
        ("rank killed", "worker lost", "worker lost, silent", "batch host lost"),
    ),
    Way(
        "loop of srun --overlap",
        HEAD + LOOP,
        ("--nodes=3", "--no-kill"),
        ("rank killed", "worker lost", "worker lost, silent"),
    ),
    Way(
        "torchrun, spare agent, keep-alive 1 s",
        HEAD + TORCHRUN,
        ("--nodes=3", "--no-kill"),
        ("rank killed", "worker lost", "worker lost, silent"),
    ),
)
