#!/usr/bin/env bash
# What steps ask of Slurm itself.
set -euo pipefail

# Platforms have theirs apart.
export PATH=$PATH:/opt/slurm/bin:/opt/slurm/sbin

# The files that decide how Slurm's daemons run.
slurm::files() {
  find "$C_SLURM_CONFIG_DIR" -maxdepth 1 -name '*.conf' ! -name slurmdbd.conf | sort
}

slurm::setting() { # key default: of slurm.settings in cluster.yaml
  local i
  for i in "${!C_SLURM_SETTINGS_KEYS[@]}"; do
    if [[ ${C_SLURM_SETTINGS_KEYS[i],,} == "${1,,}" ]]; then
      echo "${C_SLURM_SETTINGS_VALUES[i]}"
      return
    fi
  done
  echo "$2"
}

# All controllers, as slurmd --conf-server takes them.
slurm::controllers() {
  local i port
  local -a found=()
  port=$(slurm::setting SlurmctldPort 6817)
  for i in "${!NODES_NAME[@]}"; do
    [[ ${NODES_ROLE[i]} != head ]] || found+=("${NODES_NAME[i]}:$port")
  done
  (IFS=, && echo "${found[*]}")
}

# One of the controllers listens.
slurm::controller_listens() {
  local one
  for one in $(slurm::controllers | tr , ' '); do
    ! wait::port "${one%:*}" "${one##*:}" || return 0
  done
  return 1
}

# slurm::around_jobs FOLDER: what lies in it is run by Slurm before or after each job, as its name prolog.d or epilog.d says.
# ParallelCluster has one folder for all nodes, which the head writes; HyperPod runs none.
slurm::around_jobs() {
  case $C_PLATFORM:$N_ROLE in
    plain:compute | parallelcluster:head) want::files "$1" "$C_SLURM_CONFIG_DIR/muster/${1##*/}" 0755 ;;
  esac
}

slurm::why() { # log
  grep -E 'error|fatal' "$1" 2>/dev/null | tail -1
}

main() {
  echo "this file is read by steps, not run" >&2
  exit 64
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
