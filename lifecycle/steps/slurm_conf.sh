#!/usr/bin/env bash
# Renders slurm.conf and its like from cluster.yaml, beside an operator's own lines; compute nodes get the head's from slurmctld.
#
# needs: packages users mounts
# roles: head login
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly SLURM_CONF_OURS=$MUSTER_STATE/description.json

slurm_conf::muster() { # verb
  step::muster slurm-conf "$@" "$SLURM_CONF_OURS"
}

slurm_conf::differs() {
  local rc=0
  slurm_conf::muster diff >/dev/null || rc=$?
  ((rc <= 1)) || exit "$rc"
  ((rc == 1))
}

# There the platform writes slurm.conf, and runs the daemons. Ours is the line that includes our file.
slurm_conf::platform() {
  local sum
  if ! [[ -s $C_SLURM_CONFIG_DIR/slurm.conf ]]; then
    step::differs "$C_SLURM_CONFIG_DIR/slurm.conf is not there yet" ||
      wait::until 300 test -s "$C_SLURM_CONFIG_DIR/slurm.conf" ||
      step::fail 75 "the platform has written no $C_SLURM_CONFIG_DIR/slurm.conf in 300 s"
    ! step::checking || return 0
  fi
  slurm_conf::render
  mapfile -t files < <(slurm::files)
  sum=$(service::sum "${files[@]}")
  if [[ $(cat "$MUSTER_STATE/started.slurmctld" 2>/dev/null) != "$sum" ]]; then
    step::differs "slurmctld has not read it" || {
      timeout 60 scontrol reconfigure || echo "slurmctld does not run yet: it will read it when it starts"
      service::note_start "$sum" slurmctld
    }
  fi
}

slurm_conf::render() {
  if slurm_conf::differs; then
    step::differs "$C_SLURM_CONFIG_DIR: not as cluster.yaml says" || slurm_conf::muster render
  fi
}

step::state() {
  local -a files
  if [[ $C_PLATFORM != plain ]]; then
    [[ $N_ROLE != head ]] || slurm_conf::platform
    return 0
  fi
  want::program sinfo slurm-client
  want::folder "$C_SLURM_CONFIG_DIR" 0755
  # Its release decides what is rendered.
  step::checking && [[ -z $C_SLURM_VERSION ]] && ! command -v sinfo >/dev/null && return 0
  step::checking && [[ ! -d $C_SLURM_CONFIG_DIR ]] && return 0
  slurm_conf::render
}

main() { step::run "$@"; }

main "$@"
