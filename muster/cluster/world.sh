#!/usr/bin/env bash
# Process 1 of a local cluster: makes the head and its network, starts the daemons, boots the nodes,
# and then is the "BMC" that switches nodes off and on when it is asked to through the pipe `bmc`.
#
# It runs in its own mount, network, host name and process namespaces. When it dies, for whatever
# reason, the kernel ends everything inside with it: that is the whole clean-up.
set -Eeuo pipefail
trap 'echo "${BASH_SOURCE[0]##*/} line $LINENO: failed: $BASH_COMMAND" >&2' ERR

CLUSTER=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly CLUSTER
# shellcheck source=/dev/null
source "$CLUSTER/etc/world.env"
# shellcheck source=muster/cluster/machine.sh
source "$CLUSTER/lib/machine.sh"

world::network() {
  hostname head
  ip link set lo up
  ip link add br0 type bridge
  ip address add "$SUBNET.1/24" dev br0
  ip link set br0 up
}

world::etc() {
  local file
  for file in hosts resolv.conf nsswitch.conf passwd group; do
    [[ ! -e /etc/$file || ! -e $CLUSTER/etc/$file ]] || mount --bind "$CLUSTER/etc/$file" "/etc/$file"
  done
}

# A disk of all nodes that may be filled without harm to this machine's own. Nodes inherit the mount.
world::shared_disk() {
  mount -t tmpfs -o mode=1777,size=256m shared "$CLUSTER/shared"
  [[ -z ${IMAGE:-} ]] || cp -a "$IMAGE/shared/." "$CLUSTER/shared"
}

# Slurm wants character devices. Each has its own minor number: were they alike, denying one to a
# job would deny them all. Who may not make devices gets /dev/null under those names.
world::gpu_devices() {
  local i
  mount -t tmpfs -o mode=755 devices "$CLUSTER/dev"
  for ((i = 0; i < GPUS; i++)); do
    if ! mknod -m 666 "$CLUSTER/dev/nvidia$i" c 195 "$i" 2>/dev/null; then
      : >"$CLUSTER/dev/nvidia$i"
      mount --bind /dev/null "$CLUSTER/dev/nvidia$i"
    fi
  done
}

# --force: in a user namespace the parents of these files belong to "nobody", which munge dislikes.
world::daemons() {
  local -r at=$CLUSTER/munge
  "${AS[@]}" munged --socket="$at/sock" --key-file="$CLUSTER/etc/munge.key" \
    --log-file="$CLUSTER/log/munged.log" --pid-file="$at/munged.pid" \
    --seed-file="$at/seed" --num-threads=10 --force
  "${AS[@]}" slurmctld -c
}

world::boot_all() {
  local node
  local -a pids=()
  for node in "${NODES[@]}"; do
    machine::boot "$node" &
    pids+=($!)
  done
  for node in "${pids[@]}"; do wait "$node"; done
}

# Until every node has reported. One that the health check drained at once is an answer too.
world::wait_reported() {
  local states=unknown
  local reason
  until [[ $states != *unk* && $states != *'*'* && $states != *down* ]]; do
    sleep 0.05
    states=$("${AS[@]}" timeout 5 sinfo -h -o '%T' 2>/dev/null) || states=unknown
    if reason=$(grep -hs 'fatal:' "$CLUSTER"/log/slurm*.log); then
      machine::fail "${reason%%$'\n'*}"
    fi
  done
}

world::out_of_service() {
  local node
  for node in "${OUT_OF_SERVICE[@]}"; do
    "${AS[@]}" timeout 10 scontrol update "nodename=$node" state=drain \
      reason="admin: waiting for a spare part"
  done
}

# One request a line: VERB NODE for the machines, or "run REQUEST" from on-node.
world::serve() {
  local verb what
  exec 9<>"$CLUSTER/bmc" # for reading and writing: never at its end, however many clients leave
  while read -r verb what <&9; do
    case $verb in
      run) world::run_on_node "$what" 9>&- & ;;
      *) bash "$CLUSTER/lib/machine.sh" "$verb" "$what" 9>&- & ;;
    esac
  done
}

# Runs for on-node what no client may do itself when the cluster belongs to an ordinary user:
# entering another node. Files carry the request there and the answer back.
world::run_on_node() {
  local -r at=$CLUSTER/requests/$1
  local -a argv
  local node rc=0
  [[ -r $at/argv ]] || return 0
  mapfile -d '' -t argv <"$at/argv"
  node=${argv[0]}
  (machine::enter "$node" env --ignore-environment "PATH=$CLUSTER/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    HOME=/ "SLURM_CONF=$SLURM_CONF" "MUSTER_SITE=$CLUSTER/site.yaml" \
    "MUSTER_STATE_DIR=$CLUSTER/local/muster" \
    timeout -k 1 "${argv[1]}" "${AS[@]}" "${argv[@]:2}") </dev/null >"$at/out" 2>"$at/err" || rc=$?
  echo "$rc" >"$at/rc.tmp" && mv "$at/rc.tmp" "$at/rc"
} 2>/dev/null # the client may have left and taken its request with it

main() {
  export PATH=$PATH:/usr/sbin:/sbin SLURM_CONF=$CLUSTER/etc/slurm.conf
  world::network
  world::shared_disk
  world::gpu_devices
  if [[ -z $CREATED ]]; then
    world::etc
    world::daemons
  fi
  world::boot_all
  if [[ -z $CREATED ]]; then
    world::wait_reported
    world::out_of_service
  fi
  : >"$CLUSTER/ready"
  world::serve
}

main "$@"
