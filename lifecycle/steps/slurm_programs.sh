#!/usr/bin/env bash
# Puts the prolog, epilog, health check and task prolog where slurm.conf names them, and the variables that every task gets.
#
# needs: packages mounts auto_resume
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly PLUGIN=/usr/local/lib/slurm/auto_resume.so

slurm_programs::differ() {
  local rc=0
  step::muster slurm-conf programs --check "$MUSTER_STATE/description.json" >/dev/null || rc=$?
  ((rc <= 1)) || exit "$rc"
  ((rc == 1))
}

# Where Slurm's programs find what they need; lines of an operator's win over ours.
slurm_programs::env() {
  # shellcheck disable=SC2016 # expands when it is read
  echo ': "${HEALTH_LOG:=/var/log/muster/health.log}"'
  # shellcheck disable=SC2016 # expands when it is read
  [[ $C_PLATFORM == plain ]] || echo 'PATH=/opt/slurm/bin:$PATH'
}

slurm_programs::variables() {
  local i
  for i in "${!C_FABRIC_ENVIRONMENT_KEYS[@]}"; do
    echo "${C_FABRIC_ENVIRONMENT_KEYS[i]}=${C_FABRIC_ENVIRONMENT_VALUES[i]}"
  done
}

step::state() {
  local -r at=$C_SLURM_CONFIG_DIR/muster
  [[ -z $C_SLURM_AUTO_RESUME || $C_PLATFORM == hyperpod || -e $PLUGIN ]] ||
    step::fail 69 "$PLUGIN is not here: build it with 'make -C slurm/spank' for this Slurm, or slurm.auto_resume: false"
  # ParallelCluster shares the folder with all nodes, and one writes it. Elsewhere it is each node's own.
  if [[ $C_PLATFORM == parallelcluster ]]; then
    [[ $N_ROLE == head ]] || return 0
  elif [[ $N_ROLE != compute ]]; then
    return 0
  fi
  if slurm_programs::differ; then
    step::differs "$at: programs" || step::muster slurm-conf programs "$MUSTER_STATE/description.json"
  fi
  slurm_programs::env | want::block "$at/muster.env"
  want::folder "$at/environment.d" 0755
  if ((${#C_FABRIC_ENVIRONMENT_KEYS[@]} > 0)); then
    slurm_programs::variables | want::file "$at/environment.d/cluster.env" 0644
  else
    want::absent "$at/environment.d/cluster.env"
  fi
}

main() { step::run "$@"; }

main "$@"
