#!/usr/bin/env bash
# Goes into the epilog of Slurm: ends the Docker containers that a job has left on the node.
#
# Processes of a container belong to Docker's daemon: Slurm does not find them when it ends a job, and they would keep
# the GPUs. `muster run --docker` labels its containers with the job. It always ends with 0: a failing epilog drains.
set -uo pipefail

main() {
  local -r job=${SLURM_JOB_ID:-}
  local -a left
  if [[ ! $job =~ ^[0-9]+$ ]]; then
    echo "muster_docker.sh: SLURM_JOB_ID is '$job'. Fix: call it as an epilog" >&2
    return
  fi
  command -v docker >/dev/null || return
  mapfile -t left < <(timeout 30 docker ps --quiet --no-trunc --filter "label=muster.job=$job")
  ((${#left[@]} > 0)) || return
  echo "muster_docker.sh: job $job left ${#left[@]} containers: ended" >&2
  timeout 30 docker kill "${left[@]}" >/dev/null
}

main "$@"
exit 0
