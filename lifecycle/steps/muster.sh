#!/usr/bin/env bash
# Installs muster on the node, and writes the site file that its checks and jobs read.
#
# needs: packages
# optional: Slurm does without; jobs that are to survive do not
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly SITE=/etc/muster/site.yaml
readonly OURS='# Written by muster create from cluster.yaml. Take this line away, and the file is yours.'

muster::text() {
  printf "'%s'" "${1//\'/\'\'}"
}

muster::list() { # key value...
  local word
  local -a texts=()
  for word in "${@:2}"; do
    texts+=("$(muster::text "$word")")
  done
  (IFS=, && echo "$1: [${texts[*]}]")
}

muster::site() {
  local i
  local -a mounts=() shared=()
  for i in "${!C_MOUNTS_PATH[@]}"; do
    if grep -qxF "$N_ROLE" <<<"${C_MOUNTS_ROLES[i]}"; then
      mounts+=("${C_MOUNTS_PATH[i]}")
      [[ -z ${C_MOUNTS_WRITABLE[i]} ]] || shared+=("${C_MOUNTS_PATH[i]}")
    fi
  done
  echo "$OURS"
  echo "profile: $(muster::text "$C_HEALTH_PROFILE")"
  [[ $N_ROLE != compute ]] || echo "scratch_path: $(muster::text "$C_SCRATCH_PATH")"
  muster::list mounts "${mounts[@]}"
  muster::list shared_paths "${shared[@]}"
  muster::list replace_command "${C_REPLACE_COMMAND[@]}"
  muster::list reboot_command "${C_REBOOT_COMMAND[@]}"
  [[ $C_PLATFORM != hyperpod ]] || echo "hyperpod_repairs: true"
}

step::state() {
  want::folder /etc/muster 0755
  # Somebody who took the first line away looks after it himself.
  if [[ ! -e $SITE || $(head -n 1 "$SITE") == "$OURS" ]]; then
    muster::site | want::file "$SITE" 0644
  fi
  if [[ -f $MUSTER_HOME ]]; then
    want::file /usr/local/bin/muster 0755 <"$MUSTER_HOME"
  elif ! command -v muster >/dev/null; then
    step::fail 69 "muster runs from a checkout here, which cannot be installed: build muster.pyz with ./run pyz"
  fi
}

main() { step::run "$@"; }

main "$@"
