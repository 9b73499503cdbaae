#!/usr/bin/env bash
# Process 1 of a machine of a created cluster: gives it a root of its own, then does what a cloud's agent does there.
# On an empty disk that is lifecycle/on_create.sh; on one that was set up before, what systemd does: start the daemons.
#
# Below /etc, /usr and /var an overlay shows what the machine image and the host have, and keeps what is written on the
# machine's disk. All else (/home, /root, /opt, /srv) is empty on a new disk; /run, /tmp and /dev are new at each boot.
set -euo pipefail

CLUSTER=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly CLUSTER NODE=$1
# shellcheck source=/dev/null
source "$CLUSTER/etc/world.env"
readonly DISK=$CLUSTER/disks/$NODE ROOT=$CLUSTER/disks/$NODE/root
readonly CLOUD=/opt/cloud DONE=/var/lib/cloud/created

node::address() {
  echo "$SUBNET.$((FIRST_ADDRESS - 1 + ${NODE#n}))"
}

node::disk() {
  local folder from_image=
  [[ ! -e $CLUSTER/nodes/$NODE/from_image ]] || from_image=$IMAGE/$NODE
  if [[ ! -d $ROOT ]]; then
    mkdir "$ROOT"
    [[ -z $from_image ]] || cp -a "$from_image/root/." "$ROOT"
  fi
  mount --bind "$ROOT" "$ROOT"
  for folder in bin sbin lib lib32 lib64 libx32; do
    if [[ -L /$folder ]]; then
      ln -sfn "$(readlink "/$folder")" "$ROOT/$folder"
    elif [[ -d /$folder ]]; then
      node::overlay "$folder" "$from_image"
    fi
  done
  for folder in etc usr var; do node::overlay "$folder" "$from_image"; done
  mkdir -p "$ROOT"/{proc,sys,dev,run,tmp,mnt,home,srv,fsx,opt/lifecycle,opt/ml/config,opt/cloud}
  mkdir -p "$ROOT/root"
  chmod 0700 "$ROOT/root"
}

node::overlay() { # folder image
  local lower=/$1
  [[ ! -d $BASE/$1 ]] || lower=$BASE/$1:$lower
  [[ -z $2 || ! -d $2/$1 ]] || lower=$2/$1:$lower
  mkdir -p "$DISK/$1" "$DISK/work/$1" "$ROOT/$1"
  mount -t overlay overlay -o "lowerdir=$lower,upperdir=$DISK/$1,workdir=$DISK/work/$1" "$ROOT/$1"
}

node::devices() {
  local device i
  mount -t tmpfs -o mode=755 dev "$ROOT/dev"
  for device in null zero full random urandom tty; do
    : >"$ROOT/dev/$device"
    mount --bind "/dev/$device" "$ROOT/dev/$device"
  done
  for device in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do
    ln -s "/proc/self/${device#*:}" "$ROOT/dev/${device%:*}"
  done
  mkdir "$ROOT"/dev/{pts,shm}
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$ROOT/dev/pts"
  ln -s pts/ptmx "$ROOT/dev/ptmx"
  mount -t tmpfs -o mode=1777 shm "$ROOT/dev/shm"
  : >"$ROOT/dev/kmsg"
  mount --bind "$CLUSTER/nodes/$NODE/kmsg" "$ROOT/dev/kmsg"
  [[ $NODE != n0 ]] || return 0 # the head has no GPUs
  for ((i = 0; i < GPUS; i++)); do
    : >"$ROOT/dev/nvidia$i"
    mount --bind "$CLUSTER/dev/nvidia$i" "$ROOT/dev/nvidia$i"
  done
}

node::mounts() {
  mount -t proc proc "$ROOT/proc"
  mount --bind "$CLUSTER/nodes/$NODE/boot_id" "$ROOT/proc/sys/kernel/random/boot_id"
  mount --rbind /sys "$ROOT/sys"
  mount -t tmpfs -o mode=755 run "$ROOT/run"
  mount -t tmpfs -o mode=1777 tmp "$ROOT/tmp"
  mkdir -m 1777 "$ROOT/run/lock"
  # What the customer uploaded, and what the platform knows: read-only here, changed outside.
  mount --bind "$CLUSTER/bundle" "$ROOT/opt/lifecycle"
  mount --bind "$CLUSTER/config" "$ROOT/opt/ml/config"
  mount -o remount,bind,ro "$ROOT/opt/lifecycle"
  mount -o remount,bind,ro "$ROOT/opt/ml/config"
  mount --bind "$CLUSTER/shared" "$ROOT/fsx"
}

# Stand-ins for what is hardware, or the cloud's interface, on a real machine.
node::cloud() {
  local part
  for part in bin lib hooks log nodes; do
    mkdir -p "$ROOT$CLOUD/$part"
    mount --bind "$CLUSTER/$part" "$ROOT$CLOUD/$part"
  done
  # Of the same type as what lies over it: who looks through a folder must not take it for a file to read.
  [[ -p $ROOT$CLOUD/bmc ]] || mkfifo -m 0600 "$ROOT$CLOUD/bmc"
  mount --bind "$CLUSTER/bmc" "$ROOT$CLOUD/bmc"
  node::program "$CLOUD/hooks/reboot.sh" /usr/sbin/reboot
  [[ $NODE == n0 || $GPUS == 0 ]] || node::program "$CLOUD/bin/nvidia-smi" /usr/bin/nvidia-smi
}

node::program() { # what where
  rm -f "$ROOT$2" # it may be a link to a program that does more
  # shellcheck disable=SC2016 # expands when it is called
  printf '#!/bin/sh\nexec %s "$@"\n' "$1" >"$ROOT$2"
  chmod 755 "$ROOT$2"
}

node::network() {
  ip link set lo up
  until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
  ip address add "$(node::address)/24" dev eth0
  ip link set eth0 up
}

node::agent() {
  local -r at=$CLOUD/nodes/$NODE
  local rc=0
  export HOME=/root LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  unset SLURM_CONF
  mount -a || true # what a disk of the site lacks, its steps say
  if [[ -e $DONE ]]; then
    bash "$CLOUD/lib/services.sh" || rc=$?
  elif [[ -e $at/hold ]]; then
    return
  else
    MUSTER_FLUSH_S=0 bash /opt/lifecycle/on_create.sh || rc=$?
  fi
  node::done "$rc" "$at"
}

node::done() { # rc folder
  if (($1 == 0)); then
    mkdir -p "$(dirname "$DONE")"
    : >"$DONE"
  fi
  echo "$1" >"$2/created.tmp"
  mv "$2/created.tmp" "$2/created"
}

main() {
  local name
  name=ip-$(node::address | tr . -)
  rm -f "$CLUSTER/nodes/$NODE/created"
  hostname "$name"
  node::disk
  node::devices
  node::mounts
  node::cloud
  node::network
  cd "$ROOT"
  pivot_root . mnt
  cd /
  umount --lazy /mnt
  : >"$CLOUD/nodes/$NODE/own_root" # before, a command here would change this machine itself
  [[ $(cat /etc/hostname 2>/dev/null) == "$name" ]] || echo "$name" >/etc/hostname
  node::agent </dev/null >>"$CLOUD/log/create-$NODE.log" 2>&1 &
  while :; do # process 1 collects orphans for as long as the machine lives
    sleep infinity &
    wait $! || true
  done
}

main "$@"
