#!/usr/bin/env bash
# Goes into the prolog of Slurm: the folders that Enroot needs for the user of the job, his alone.
#
# It always ends with 0: a job without a container does not need them, and a failing prolog drains the node. What is
# wrong is said in slurmd's log; a job with a container then fails by itself and says so.
set -uo pipefail

# Folders of all: only root may replace one, everybody may add his own.
muster_enroot::shared() {
  install -d -m 1777 -o root "$@"
}

muster_enroot::own() {
  local -r uid=$1
  shift
  local folder
  for folder in "$@"; do
    # A link of this name is somebody's trap: what it points to would change its owner.
    if [[ -L $folder ]]; then
      echo "muster_enroot.sh: $folder is a link. Fix: remove it" >&2
    elif [[ ! -e $folder ]]; then
      mkdir -m 700 "$folder" && chown -h "$uid" "$folder"
    elif [[ $(stat -c %u "$folder") != "$uid" ]]; then
      echo "muster_enroot.sh: $folder is not of user $uid. Fix: remove it" >&2
    fi
  done
}

main() {
  local -r uid=${SLURM_JOB_UID:-}
  local -r memory=${MUSTER_ENROOT_RUN:-/run/enroot} disk=${MUSTER_ENROOT_DISK:-/var/lib/enroot}
  if [[ ! $uid =~ ^[0-9]+$ ]]; then
    echo "muster_enroot.sh: SLURM_JOB_UID is '$uid'. Fix: call it as a prolog" >&2
    return
  fi
  muster_enroot::shared "$memory" "$disk"/{cache,data,temp}
  # Pyxis makes the users' folders here itself, as root: nobody else may put one there before.
  install -d -m 755 -o root "$disk/pyxis"
  muster_enroot::own "$uid" "$memory/user-$uid" "$disk"/{cache,data,temp}"/user-$uid"
}

main "$@"
exit 0
