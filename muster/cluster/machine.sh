#!/usr/bin/env bash
# The machines of a local cluster, seen from outside: power, cable, disk, GPUs. Runs on the head.
#   machine.sh off|silent-off|on|reboot|replace|cut|uncut|freeze|thaw|slurmd-kill|slurmd-start NODE
#   machine.sh gpu-break NODE INDEX lost|gone|ecc
#   machine.sh kernel-line NODE TEXT
#   machine.sh hide|show NODE FOLDER
#
# A node is one process namespace, so that killing its process 1 is a power loss: everything on the
# node dies at the same instant.
set -euo pipefail

: "${CLUSTER:=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}"

machine::fail() {
  echo "$*" >&2
  exit 1
}

# Process id of a node's process 1, as the head sees it; fails when the node is off.
machine::init() {
  local pid
  [[ -r $CLUSTER/nodes/$1/pid ]] || return 1
  pid=$(<"$CLUSTER/nodes/$1/pid")
  kill -0 "$pid" 2>/dev/null && echo "$pid"
}

machine::enter() {
  local -r node=$1
  local pid
  shift
  pid=$(machine::init "$node") || machine::fail "node $node is off"
  nsenter -t "$pid" -m -n -u -p --wdns=/ -- "$@"
}

# The child of `unshare` that is process 1 of a new namespace; unshare has short-lived others.
machine::first_child() {
  local child
  local -a children
  for _ in {1..500}; do
    kill -0 "$1" 2>/dev/null || return 1
    read -ra children <"/proc/$1/task/$1/children" || true # no newline at its end
    for child in "${children[@]}"; do
      if grep -q $'^NSpid:.*\t1$' "/proc/$child/status" 2>/dev/null; then
        echo "$child"
        return
      fi
    done
    sleep 0.02
  done
  return 1
}

# Power on: a new boot id, the same disk if there is one, the same GPUs if there are any.
machine::boot() {
  local -r node=$1 at=$CLUSTER/nodes/$1
  local init
  ! machine::init "$node" >/dev/null || return 0
  cat /proc/sys/kernel/random/uuid >"$at/boot_id"
  echo '6,0,0,-;Linux version (local cluster)' >"$at/kmsg" # a new boot forgets
  rm -f "$at/own_root"
  [[ -e $at/gpus ]] || machine::new_gpus "$node"
  if ! mountpoint -q "$CLUSTER/disks/$node"; then
    mkdir -p "$CLUSTER/disks/$node"
    mount -t tmpfs -o mode=1777,size=2g disk "$CLUSTER/disks/$node"
  fi
  ip link delete "v$node" 2>/dev/null || true
  setsid unshare -m -n -u -p --fork --kill-child --mount-proc \
    bash "$CLUSTER/lib/node.sh" "$node" </dev/null >>"$CLUSTER/log/node-$node.log" 2>&1 8>&- &
  init=$(machine::first_child $!)
  echo "$init" >"$at/pid.tmp" && mv "$at/pid.tmp" "$at/pid"
  # The same hardware address after a replacement: else the peers send to the old one for a minute.
  mac=$(printf '02:6d:75:73:%02x:%02x' $((${node#n} / 256)) $((${node#n} % 256)))
  ip link add "v$node" type veth peer name eth0 address "$mac" netns "$init"
  ip link set "v$node" master br0
  ip link set "v$node" up
}

machine::on() {
  sleep "$BOOT_S"
  machine::boot "$1"
}

# Ends when no process of the node is left.
machine::off() {
  local pid
  if pid=$(machine::init "$1"); then
    kill -KILL "$pid"
    for _ in {1..1000}; do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.01
    done
  fi
  rm -f "$CLUSTER/nodes/$1/pid"
}

# Another machine under the same name: empty disk, other GPUs, healthy ones.
machine::replace() {
  machine::off "$1"
  # Lazily: what a process that has just died had mounted may be a moment behind.
  umount --lazy "$CLUSTER/disks/$1" 2>/dev/null || true
  rm -f "$CLUSTER/nodes/$1/"{gpus,from_image}
  # A cloud's list of machines says that it is another one.
  [[ ! -d $CLUSTER/config ]] ||
    sed -i -E "s/\"i-local-$1(-[0-9]+)?\"/\"i-local-$1-$RANDOM\"/" "$CLUSTER/config/resource_config.json"
  machine::on "$1"
}

# index|name|uuid|serial|bus id|state|uncorrected errors, one GPU a line
machine::new_gpus() {
  local -r at=$CLUSTER/nodes/$1
  local -ra buses=(1B 43 52 61 9D C3 D1 DF 1C 44 53 62 9E C4 D2 E0)
  local i uuid
  for ((i = 0; i < GPUS; i++)); do
    read -r uuid </proc/sys/kernel/random/uuid
    printf '%d|NVIDIA H100 80GB HBM3|GPU-%s|165%05d%05d|00000000:%s:00.0|ok|0\n' \
      "$i" "$uuid" "$RANDOM" "$RANDOM" "${buses[i]}"
  done >"$at/gpus.tmp"
  mv "$at/gpus.tmp" "$at/gpus"
}

machine::gpu_break() {
  local -r file=$CLUSTER/nodes/$1/gpus index=$2 how=$3
  local errors=0 state=$3
  [[ $how != ecc ]] || { errors=1 state=ok; }
  grep -q "^$index|" "$file" || machine::fail "node $1 has no GPU $index"
  awk -F'|' -v OFS='|' -v i="$index" -v state="$state" -v errors="$errors" \
    '$1 == i { $6 = state; $7 += errors } { print }' "$file" >"$file.tmp"
  mv "$file.tmp" "$file"
}

# A line in the node's kernel log, as /dev/kmsg shows it: level, number, microseconds, flags; text.
machine::kernel_line() {
  local -r file=$CLUSTER/nodes/$1/kmsg
  local uptime
  read -r uptime _ </proc/uptime
  printf '4,%d,%s0000,-;%s\n' "$(wc -l <"$file")" "${uptime/./}" "$2" >>"$file"
}

# A folder that was removed on another node takes its mount along.
machine::show() {
  ! machine::enter "$1" mountpoint -q "$2" || machine::enter "$1" umount --lazy "$2"
}

# Everything but process 1, which has no handler for these and is not reachable by them.
machine::signal_all() {
  machine::enter "$1" bash -c "kill -$2 -1" || true
}

machine::slurmd_kill() {
  local -r file=$CLUSTER/local/slurmd.pid
  # shellcheck disable=SC2016 # expands inside the node
  machine::enter "$1" bash -c 'kill -KILL "$(cat "$1")"' _ "$file"
}

machine::do() {
  local -r verb=$1 node=$2
  case $verb in
    off) machine::off "$node" ;;
    silent-off)
      ip link set "v$node" down # first the cable: no peer hears that the connections closed
      machine::off "$node"
      ;;
    on) machine::on "$node" ;;
    reboot)
      machine::off "$node"
      machine::on "$node"
      ;;
    replace) machine::replace "$node" ;;
    cut) ip link set "v$node" down ;;
    uncut) ip link set "v$node" up ;;
    freeze) machine::signal_all "$node" STOP ;;
    thaw) machine::signal_all "$node" CONT ;;
    slurmd-kill) machine::slurmd_kill "$node" ;;
    slurmd-start) machine::enter "$node" "${AS[@]}" slurmd -N "$node" ;;
    gpu-break) machine::gpu_break "$node" "$3" "$4" ;;
    kernel-line) machine::kernel_line "$node" "$3" ;;
    hide) machine::enter "$node" mount -t tmpfs -o mode=755,size=4k hidden "$3" ;;
    show) machine::show "$node" "$3" ;;
    *) machine::fail "unknown request '$verb'" ;;
  esac
}

main() {
  readonly CLUSTER
  # shellcheck source=/dev/null
  source "$CLUSTER/etc/world.env"
  export PATH=$PATH:/usr/sbin:/sbin SLURM_CONF=$CLUSTER/etc/slurm.conf
  [[ -d $CLUSTER/nodes/$2 ]] || machine::fail "no node '$2'"
  exec 8>>"$CLUSTER/nodes/$2/lock" # one request at a time per machine; nodes never inherit it
  flock -w 60 8 || machine::fail "node $2 is busy with another request"
  machine::do "$@"
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
