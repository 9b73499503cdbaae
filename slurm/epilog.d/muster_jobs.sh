#!/bin/bash
# Part of Slurm's Epilog: takes back what prolog.d/muster_jobs.sh told of the job. It always ends with 0.
set -uo pipefail

main() {
  exec 2>/dev/null # what slurmd would log
  local -r figures=${MUSTER_FIGURES:-/var/lib/prometheus/node-exporter} gpus=${MUSTER_GPU_JOBS:-/run/muster/gpu_jobs}
  local -r job=${SLURM_JOB_ID:-}
  local file
  [[ $job =~ ^[0-9]+$ ]] || return
  rm -f "$figures/muster_job_$job.prom"
  # Where jobs share a GPU the others stay.
  for file in "$gpus"/*; do
    [[ ! -f $file ]] || sed -i "/^$job\$/d" "$file"
    [[ -s $file ]] || rm -f "$file"
  done
}

main "$@"
exit 0
