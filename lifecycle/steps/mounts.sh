#!/usr/bin/env bash
# Mounts the shared file systems, and counts one only when a file of this node's own could be written, read and removed.
#
# needs: packages hosts
# when: mounts
# limit_s: 1800
# tries: 2
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

# A server that does not answer hangs whoever looks. Every look has a limit.
mounts::is() {
  timeout 20 mountpoint -q "$1"
}

mounts::probe() { # path
  # The node's own name in it: on a shared disk every node does this at the same time.
  # shellcheck disable=SC2016 # expands inside
  timeout 30 bash -c 'set -e; echo "$2" >"$1"; [[ $(cat "$1") == "$2" ]]; rm "$1"' _ \
    "$1/.muster-probe.$N_NAME.$$" "$RANDOM $$" 2>/dev/null
}

mounts::type() { # kind
  case $1 in
    openzfs) echo nfs ;;
    *) echo "$1" ;;
  esac
}

mounts::options() { # index
  local options=${C_MOUNTS_OPTIONS[$1]//$'\n'/,}
  [[ -n $options ]] || case ${C_MOUNTS_KIND[$1]} in
    lustre) options=flock,noatime ;;       # flock: the lock files of frameworks need it
    *) options=nfsvers=4.1,hard,noatime ;; # hard: a slow server must not turn into a failed write
  esac
  [[ -n ${C_MOUNTS_WRITABLE[$1]} ]] || options=$options,ro
  echo "$options,_netdev,nofail"
}

mounts::client() { # kind
  case $1 in
    nfs | openzfs) want::packages nfs-common ;;
    lustre) [[ -e /sbin/mount.lustre ]] || step::fail 69 "there is no Lustre client (mount.lustre) for this kernel" ;;
  esac
}

mounts::fstab() {
  local i
  for i in "${!C_MOUNTS_PATH[@]}"; do
    if mounts::ours "$i" && [[ ${C_MOUNTS_KIND[i]} != existing ]]; then
      echo "${C_MOUNTS_SOURCE[i]} ${C_MOUNTS_PATH[i]} $(mounts::type "${C_MOUNTS_KIND[i]}") $(mounts::options "$i") 0 0"
    fi
  done
}

mounts::ours() { # index
  grep -qxF "$N_ROLE" <<<"${C_MOUNTS_ROLES[$1]}"
}

mounts::one() { # index
  local -r path=${C_MOUNTS_PATH[$1]} wait_s=${C_MOUNTS_WAIT_S[$1]}
  local why=
  if ! mounts::is "$path"; then
    step::differs "$path is not mounted" || {
      mkdir -p "$path"
      wait::until "$wait_s" mounts::again "$1" || step::fail 75 "$path is not mounted after $wait_s s"
    }
    step::checking && return
  fi
  if [[ -n ${C_MOUNTS_WRITABLE[$1]} ]] && ! mounts::probe "$path"; then
    step::differs "$path is mounted, but cannot be written" || wait::until "$wait_s" mounts::probe "$path" || {
      why=$(mounts::why "$path")
      step::fail 74 "$path is mounted, but cannot be written after $wait_s s: $why"
    }
  fi
  mounts::size "$1" "$path"
}

mounts::again() { # index
  mounts::is "${C_MOUNTS_PATH[$1]}" || {
    [[ ${C_MOUNTS_KIND[$1]} == existing ]] || timeout 60 mount "${C_MOUNTS_PATH[$1]}" 2>/dev/null || true
    mounts::is "${C_MOUNTS_PATH[$1]}"
  }
}

mounts::why() { # path
  timeout 30 touch "$1/.muster-probe.$N_NAME.why" 2>&1 | tail -1 || true
}

mounts::size() { # index path
  local -r least=${C_MOUNTS_MIN_SIZE_TB[$1]}
  local size
  [[ -n $least ]] || return 0
  size=$(timeout 30 df --output=size -B1 "$2" | tail -1)
  awk -v size="$size" -v least="$least" 'BEGIN { exit size < least * 1e12 }' ||
    step::fail 78 "$2 has $((size / 1000000000)) GB, less than the $least TB of cluster.yaml: another file system?"
}

step::state() {
  local i
  for i in "${!C_MOUNTS_PATH[@]}"; do
    ! mounts::ours "$i" || mounts::client "${C_MOUNTS_KIND[i]}"
  done
  mounts::fstab | want::block /etc/fstab
  for i in "${!C_MOUNTS_PATH[@]}"; do
    ! mounts::ours "$i" || mounts::one "$i"
  done
}

main() { step::run "$@"; }

main "$@"
