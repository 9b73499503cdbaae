#!/usr/bin/env bash
# Finds each compute node a fast disk of its own, and proves its free space: never silently the root disk.
#
# needs: packages
# roles: compute
# limit_s: 900
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly LABEL=muster_scratch

# Whole NVMe disks that nobody uses: no partition, no file system, no mount, no volume of the cloud's. A disk that holds
# anything at all is never touched.
scratch::free_disks() {
  local name type model
  while read -r name type model; do
    [[ $type == disk && $name == nvme* && $model != *"Elastic Block Store"* ]] || continue
    [[ -z $(lsblk -nro NAME "/dev/$name" | tail -n +2) ]] || continue
    [[ -z $(blkid -p -o value -s TYPE "/dev/$name" 2>/dev/null) ]] || continue
    echo "/dev/$name"
  done < <(lsblk -dnro NAME,TYPE,MODEL 2>/dev/null | sed 's/\\x20/ /g')
}

scratch::ours() {
  blkid -L "$LABEL" 2>/dev/null
}

# Striped, without a copy: what lies there may be lost with the node, and nothing that must last belongs there.
scratch::raid() {
  local device
  local -a disks
  if ! device=$(scratch::ours); then
    mapfile -t disks < <(scratch::free_disks)
    ((${#disks[@]} > 0)) || return 1
    want::packages mdadm xfsprogs
    device=${disks[0]}
    if ((${#disks[@]} > 1)); then
      device=/dev/md/muster_scratch
      mdadm --create "$device" --run --level=0 --raid-devices=${#disks[@]} "${disks[@]}"
      wait::until 30 test -b "$device" || step::fail 74 "$device does not appear"
    fi
    mkfs.xfs -q -L "$LABEL" "$device"
  fi
  mkdir -p "$C_SCRATCH_PATH"
  timeout 120 mount -o noatime "$device" "$C_SCRATCH_PATH"
}

# A disk that the platform has mounted, or mounts in a moment.
scratch::instance_store() {
  local store
  for store in "${C_SCRATCH_STORES[@]}"; do
    if scratch::store_comes "$store" && wait::until 180 mountpoint -q "$store"; then
      scratch::bind "$store/scratch"
      return
    fi
  done
  return 1
}

# Without the unit that mounts it there is nothing to wait for.
scratch::store_comes() {
  mountpoint -q "$1" || { service::systemd && systemctl cat "$(basename "$1" | sed 's/^nvme$/dlami-nvme/').service" >/dev/null 2>&1; }
}

scratch::folder() {
  scratch::bind "$C_SCRATCH_FOLDER"
}

scratch::bind() { # folder
  mkdir -p "$1" "$C_SCRATCH_PATH"
  mount --bind "$1" "$C_SCRATCH_PATH"
}

scratch::free_gib() {
  timeout 30 df --output=avail -B1M "$C_SCRATCH_PATH" | awk 'NR == 2 { printf "%.1f\n", $1 / 1024 }'
}

scratch::has_room() {
  awk -v free="$(scratch::free_gib)" -v least="$C_SCRATCH_MIN_FREE_GIB" 'BEGIN { exit free < least }'
}

scratch::pick() {
  local kind
  for kind in "${C_SCRATCH_KINDS[@]}"; do
    if "scratch::$kind"; then
      # Free space that only df believes in is none.
      if scratch::has_room && scratch::proof; then
        echo "$C_SCRATCH_PATH is of kind $kind, with $(scratch::free_gib) GiB free"
        return
      fi
      echo "$C_SCRATCH_PATH of kind $kind has $(scratch::free_gib) GiB, less than $C_SCRATCH_MIN_FREE_GIB"
      umount "$C_SCRATCH_PATH"
    fi
  done
  step::fail 69 "this node has no scratch of $C_SCRATCH_MIN_FREE_GIB GiB among: ${C_SCRATCH_KINDS[*]}"
}

scratch::proof() {
  local -r file=$C_SCRATCH_PATH/.muster-proof
  fallocate -l "$(awk -v least="$C_SCRATCH_MIN_FREE_GIB" 'BEGIN { printf "%d", least * 1073741824 * 0.9 }')" "$file" 2>/dev/null &&
    rm -f "$file" && return
  rm -f "$file"
  return 1
}

# A reboot does not run the steps again.
scratch::fstab() {
  local folder
  if [[ $(findmnt -nro LABEL "$C_SCRATCH_PATH") == "$LABEL" ]]; then
    echo "LABEL=$LABEL $C_SCRATCH_PATH xfs noatime,nofail 0 0"
  fi
  for folder in "${C_SCRATCH_STORES[@]/%//scratch}" "$C_SCRATCH_FOLDER"; do
    if [[ $folder -ef $C_SCRATCH_PATH ]]; then
      echo "$folder $C_SCRATCH_PATH none bind,nofail,x-systemd.requires-mounts-for=$(dirname "$folder") 0 0"
    fi
  done
}

step::state() {
  if ! mountpoint -q "$C_SCRATCH_PATH"; then
    step::differs "$C_SCRATCH_PATH is not mounted" || scratch::pick
  fi
  step::checking && ! mountpoint -q "$C_SCRATCH_PATH" && return 0
  # Everybody may write, nobody may take away what is another's; as /tmp.
  want::mode "$C_SCRATCH_PATH" 1777 root:root
  scratch::fstab | want::block /etc/fstab
}

main() { step::run "$@"; }

main "$@"
