#!/usr/bin/env bash
# Process 1 of one compute node: address, host name, private disk and memory, boot id, slurmd.
# The network card is pushed in from outside by machine.sh once this process exists.
set -euo pipefail

CLUSTER=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly CLUSTER NODE=$1
# shellcheck source=/dev/null
source "$CLUSTER/etc/world.env"

node::mounts() {
  mount --bind "$CLUSTER/disks/$NODE" "$CLUSTER/local"
  mount -t tmpfs -o mode=700,size=4k hidden "$CLUSTER/disks" # the other nodes' disks are not ours
  mount -t tmpfs -o mode=1777 shm /dev/shm
  mount --bind "$CLUSTER/nodes/$NODE/boot_id" /proc/sys/kernel/random/boot_id
  # Its own kernel log: what the kernel of this machine says must not blame a node.
  [[ ! -e /dev/kmsg ]] || mount --bind "$CLUSTER/nodes/$NODE/kmsg" /dev/kmsg
}

node::network() {
  ip link set lo up
  until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
  ip address add "$SUBNET.$((FIRST_ADDRESS - 1 + ${NODE#n}))/24" dev eth0
  ip link set eth0 up
}

main() {
  hostname "$NODE"
  node::mounts
  node::network
  mkdir -p "$CLUSTER/local/slurmd"
  # -b: this machine has just booted. Slurm would otherwise read the uptime of the real one.
  "${AS[@]}" slurmd -b -N "$NODE"
  while :; do # process 1 collects orphans for as long as the node lives
    sleep infinity &
    wait $! || true
  done
}

main "$@"
