#!/usr/bin/env bash
# Gives all nodes the same munge key, and starts munged with it: without it no daemon of Slurm believes another.
#
# needs: packages users hosts mounts
# when: platform=plain
# limit_s: 900
# tries: 5
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly MUNGE_KEY=/etc/munge/munge.key

# The key of the cluster as base64 text, in a file of root's: from where the description says; else the first head node
# makes one, and the others take it from the shared disk.
munge::fetch() {
  local -r shared=$C_SHARED_DIR/munge.key
  if [[ -n $C_SLURM_MUNGE_KEY_FILE || -n ${C_SLURM_MUNGE_KEY_COMMAND[*]} ]]; then
    secret::fetch munge "$C_SLURM_MUNGE_KEY_FILE" "${C_SLURM_MUNGE_KEY_COMMAND[@]}"
  elif [[ -z $C_SHARED_DIR ]]; then
    ((${#NODES_NAME[@]} == 1)) || step::fail 78 "give slurm.munge_key, or a shared_dir to share one through"
    secret::fetch munge ""
  elif [[ -n $N_PRIMARY ]]; then
    [[ -s $shared ]] || munge::share "$shared"
    secret::fetch munge "$shared"
  else
    wait::until 600 test -s "$shared" || step::fail 75 "$shared does not appear: is the first head node being created?"
    secret::fetch munge "$shared"
  fi
}

munge::share() { # path; whole or not at all, and never over one that is there
  local part
  (umask 077 && mkdir -p "$(dirname "$1")" && part=$(mktemp "$1.XXXXXX") && base64 -w 0 <(head -c 128 /dev/urandom) >"$part" &&
    sync "$part" && { ln "$part" "$1" 2>/dev/null || mv -n "$part" "$1"; } && rm -f "$part") || step::fail 74 "$1 cannot be written"
}

munge::differs() {
  [[ -s $MUSTER_SECRETS/munge ]] || return 0
  ! secret::print munge | base64 -d 2>/dev/null | cmp -s - "$MUNGE_KEY"
}

munge::install_key() {
  local new
  new=$(umask 077 && mktemp /etc/munge/.key.XXXXXX)
  secret::print munge | base64 -d >"$new" 2>/dev/null || step::fail 78 "the munge key is not base64"
  (($(stat -c %s "$new") >= 32)) || step::fail 78 "the munge key has less than 32 bytes"
  chown munge:munge "$new"
  chmod 0400 "$new"
  mv -f "$new" "$MUNGE_KEY"
}

# A credential that this machine made and read again.
munge::works() {
  timeout 20 munge -n 2>/dev/null | timeout 20 unmunge >/dev/null 2>&1
}

munge::daemon() {
  install -d -o munge -g munge -m 0755 /run/munge
  runuser -u munge -- /usr/sbin/munged --num-threads=10
}

step::state() {
  want::packages munge
  if secret::stale munge "${C_SLURM_MUNGE_KEY_FILE:-${C_SHARED_DIR:+$C_SHARED_DIR/munge.key}}"; then
    step::differs "the munge key has changed" || true
  fi
  step::checking || munge::fetch
  if munge::differs; then
    step::differs "$MUNGE_KEY: not the cluster's" || {
      munge::install_key
      service::restart munge munged munge::daemon
    }
  fi
  step::checking && ! command -v munged >/dev/null && return 0
  want::service munge munged munge::daemon
  munge::works || step::differs "munge makes no credentials" || wait::until 20 munge::works ||
    step::fail 75 "munge makes no credentials"
}

main() { step::run "$@"; }

main "$@"
