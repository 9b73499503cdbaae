#!/bin/bash
# Part of Slurm's Prolog: tells the exporters of figures which job is on this node, and on which of its GPUs.
#
# The node exporter reads a file of lines for Prometheus, the DCGM exporter one file per GPU with the numbers of its jobs.
# Never -e, and it always ends with 0: figures are no reason to drain a node.
set -uo pipefail

main() {
  exec 2>/dev/null # what slurmd would log
  local -r figures=${MUSTER_FIGURES:-/var/lib/prometheus/node-exporter} gpus=${MUSTER_GPU_JOBS:-/run/muster/gpu_jobs}
  local -r job=${SLURM_JOB_ID:-} user=${SLURM_JOB_USER:-} partition=${SLURM_JOB_PARTITION:-}
  local gpu part numbers=${SLURM_JOB_GPUS:-}
  [[ $job =~ ^[0-9]+$ ]] || return
  if [[ -d $figures ]]; then
    part=$figures/.muster_job_$job.$$
    # One rename: what is read is whole.
    printf '# HELP slurm_job_info A job of Slurm that is on this node.\n# TYPE slurm_job_info gauge\nslurm_job_info{%s} 1\n' \
      "slurm_job=\"$job\",user=\"${user//[^[:alnum:]._-]/_}\",partition=\"${partition//[^[:alnum:]._-]/_}\"" >"$part" &&
      chmod 0644 "$part" && mv -f "$part" "$figures/muster_job_$job.prom"
  fi
  if [[ -d $gpus ]]; then
    for gpu in ${numbers//,/ }; do
      [[ ! $gpu =~ ^[0-9]+$ ]] || echo "$job" >>"$gpus/$gpu"
    done
  fi
}

main "$@"
exit 0
