#!/usr/bin/env bash
# What all nodes of a local cluster share, seen from outside: controller, shared disk, name service. Runs on the head.
#   head.sh slurmctld-stop|slurmctld-start|disk-fill|disk-free|disk-read-only|disk-writable
#   head.sh name-forget|name-recall NODE
set -euo pipefail

CLUSTER=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=/dev/null
source "$CLUSTER/etc/world.env"
# shellcheck source=muster/cluster/machine.sh
source "$CLUSTER/lib/machine.sh"

readonly DISK=$CLUSTER/shared
readonly BALLAST=$DISK/.ballast

# As an update of the package does it: it saves its state and ends.
head::slurmctld_stop() {
  local pid
  pid=$(<"$CLUSTER/munge/slurmctld.pid")
  kill -TERM "$pid"
  while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
}

head::slurmctld_start() {
  local pid
  pid=$(cat "$CLUSTER/munge/slurmctld.pid" 2>/dev/null) || pid=
  if [[ -z $pid ]] || ! kill -0 "$pid" 2>/dev/null; then
    "${AS[@]}" slurmctld # without -c: it goes on from its state
  fi
}

head::disk_fill() {
  cat /dev/zero >"$BALLAST" 2>/dev/null || true # until there is no space left
}

# A view of the disk that cannot be written lies over the disk, on the head and on every node that runs. Files that
# are open stay writable, as they may on a disk that turns read-only.
head::disk_read_only() {
  # shellcheck disable=SC2016 # expands inside
  head::everywhere 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"'
}

head::disk_writable() {
  # shellcheck disable=SC2016 # expands inside
  head::everywhere 'while findmnt -rn -o OPTIONS "$1" | grep -q "^ro"; do umount --lazy "$1"; done'
}

head::everywhere() { # a script for the disk in $1
  local node
  bash -c "$1" _ "$DISK"
  for node in "${NODES[@]}"; do
    ! machine::init "$node" >/dev/null || machine::enter "$node" bash -c "$1" _ "$DISK"
  done
}

# In place: the file is mounted on every node.
head::name_forget() {
  local names
  names=$(grep -v " $1\$" "$CLUSTER/etc/hosts")
  printf '%s\n' "$names" >"$CLUSTER/etc/hosts"
}

head::name_recall() {
  head::name_forget "$1"
  echo "$SUBNET.$((FIRST_ADDRESS - 1 + ${1#n})) $1" >>"$CLUSTER/etc/hosts"
}

main() {
  export PATH=$PATH:/usr/sbin:/sbin SLURM_CONF=$CLUSTER/etc/slurm.conf
  case $1 in
    slurmctld-stop) head::slurmctld_stop ;;
    slurmctld-start) head::slurmctld_start ;;
    disk-fill) head::disk_fill ;;
    disk-free) rm -f "$BALLAST" ;;
    disk-read-only) head::disk_read_only ;;
    disk-writable) head::disk_writable ;;
    name-forget) head::name_forget "$2" ;;
    name-recall) head::name_recall "$2" ;;
    *) machine::fail "unknown request '$1'" ;;
  esac
}

main "$@"
