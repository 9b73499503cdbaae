#!/usr/bin/env bash
# Sets the node up for its fabric, EFA, InfiniBand or RoCE, and tells jobs what they must know of it.
#
# needs: packages limits mounts enroot
# roles: compute
# limit_s: 1800
# tries: 2
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly DEVICES=/sys/class/infiniband EFA=/opt/amazon/efa EFA_URL=https://efa-installer.amazonaws.com
# Drivers and ports come late after a boot.
readonly WAIT_S=${MUSTER_DEVICE_WAIT_S:-120} MODULES=/etc/modules-load.d/muster-fabric.conf

# fabric::devices KIND: names of the devices of a kind.
fabric::devices() {
  local device kind
  for device in "$DEVICES"/*; do
    [[ -e $device ]] || continue
    if [[ $(readlink "$device/device/driver") == */efa ]]; then
      kind=efa
    elif [[ $(cat "$device/ports/1/link_layer" 2>/dev/null) == InfiniBand ]]; then
      kind=infiniband
    else
      kind=roce
    fi
    [[ $kind != "$1" ]] || basename "$device"
  done
}

fabric::has() {
  [[ -n $(fabric::devices "$1") ]]
}

# On the bus, whether a driver has it or not: Amazon's number, and those of its adapters.
fabric::efa_on_bus() {
  local device
  for device in /sys/bus/pci/devices/*; do
    [[ $(cat "$device/vendor" "$device/device" 2>/dev/null) != 0x1d0f$'\n'0xefa* ]] || return 0
  done
  return 1
}

fabric::present() { # kind
  fabric::has "$1" || { [[ $1 == efa ]] && fabric::efa_on_bus; }
}

# What this node is to be set up for.
fabric::kind() {
  local kind
  if [[ $C_FABRIC_KIND != auto ]]; then
    echo "$C_FABRIC_KIND"
    return
  fi
  for kind in efa infiniband roce; do
    if fabric::present $kind; then
      echo $kind
      return
    fi
  done
  echo none
}

fabric::efa() {
  fabric::efa_is_right || step::differs "EFA: not installed${C_FABRIC_EFA_INSTALLER:+ by $C_FABRIC_EFA_INSTALLER}" || fabric::install_efa
  # Ranks of one node read each other's memory. Ubuntu forbids that.
  [[ ! -e /proc/sys/kernel/yama/ptrace_scope ]] || sysctl::want /etc/sysctl.d/91-muster-fabric.conf kernel.yama.ptrace_scope=0
}

fabric::efa_is_right() {
  [[ -x $EFA/bin/fi_info ]] && fabric::has efa &&
    grep -qsF "$C_FABRIC_EFA_INSTALLER" /opt/amazon/efa_installed_packages
}

fabric::install_efa() {
  local -r version=$C_FABRIC_EFA_INSTALLER
  local archive folder
  [[ -n $version ]] || step::fail 69 "this node has no EFA driver with libfabric: set fabric.efa_installer, such as 1.43.2"
  archive=$(fetch::file "aws-efa-installer-$version.tar.gz" "$EFA_URL/aws-efa-installer-$version.tar.gz")
  folder=$(mktemp -d "$MUSTER_STATE/efa.XXXXXX")
  tar -xzf "$archive" -C "$folder" || step::fail 65 "$archive cannot be unpacked: remove it"
  packages::wait_for_locks
  (cd "$folder/aws-efa-installer" && timeout 1500 ./efa_installer.sh -y) </dev/null 9>&- ||
    step::fail 1 "the EFA installer $version failed: see the log of this step"
  rm -rf "$folder"
  wait::until 60 fabric::has efa || step::fail 69 "the EFA installer $version ran, and no EFA device is there: reboot the node"
}

# Libfabric offers them: else NCCL goes by TCP, at a tenth of the speed, and says nothing.
fabric::efa_works() {
  timeout 60 "$EFA/bin/fi_info" -p efa >/dev/null 2>&1
}

fabric::rdma() { # kind
  want::packages rdma-core ibverbs-utils
  [[ $1 != infiniband ]] || want::packages infiniband-diags
}

# Those that this kernel has: nvidia_peermem and gdrdrv let the adapter read the GPU's memory.
fabric::modules() { # name...
  local name
  local -a wanted=()
  for name; do
    if modinfo "$name" >/dev/null 2>&1; then wanted+=("$name"); fi
  done
  if ((${#wanted[@]} == 0)); then
    want::absent "$MODULES"
    return
  fi
  printf '%s\n' "# Written by muster." "${wanted[@]}" | want::file "$MODULES" 0644
  for name in "${wanted[@]}"; do
    [[ -d /sys/module/$name ]] || step::differs "module $name: not loaded" || modprobe "$name" ||
      step::fail 69 "the module $name cannot be loaded: does it belong to this kernel and driver?"
  done
}

# Enroot's hook knows what this node's ports want. It is asked with the word of cluster.yaml: what that names, and has no
# port that carries data, is an error.
fabric::ask() { # folder of ours
  local -r folder=$MUSTER_STATE/fabric/environ.d
  rm -rf "$folder" && mkdir -p "$folder" && cp -r "$1/environ.d/fabric" "$folder" && echo "$C_FABRIC_KIND" >"$folder/fabric/expected"
  ENROOT_SYSCONF_PATH=${folder%/*} bash "$1/hooks.d/20-muster-fabric.sh" print 2>&1
}

# Jobs without a container get its variables as they are now; Slurm's task prolog reads them, after those of cluster.yaml.
# ParallelCluster has one such folder for nodes of all kinds.
fabric::tell_jobs() {
  local ours lines
  ours=$(assets::folder containers/enroot)
  if ! lines=$(fabric::ask "$ours"); then
    step::differs "$C_FABRIC_KIND: no port is active" || wait::until "$WAIT_S" fabric::ask "$ours" >/dev/null ||
      step::fail 69 "${lines%%. Fix:*}"
    lines=$(fabric::ask "$ours") || return 0
  fi
  [[ $C_PLATFORM == parallelcluster ]] ||
    grep -v '^MELLANOX_' <<<"$lines" | want::file "$DETECTED" 0644
}

# Containers are asked at each start, by the hook itself, and cluster.yaml's variables come first there, too.
fabric::tell_containers() {
  local i own=
  want::file /etc/enroot/environ.d/fabric/expected 0644 <<<"$C_FABRIC_KIND"
  for i in "${!C_FABRIC_ENVIRONMENT_KEYS[@]}"; do
    own+="${C_FABRIC_ENVIRONMENT_KEYS[i]}=${C_FABRIC_ENVIRONMENT_VALUES[i]}"$'\n'
  done
  if [[ -n $own ]]; then
    printf '# Written by muster from cluster.yaml.\n%s' "$own" | want::file /etc/enroot/environ.d/60-fabric.env 0644
  else
    want::absent /etc/enroot/environ.d/60-fabric.env
  fi
}

step::state() {
  local -r kind=$(fabric::kind)
  local -a modules=()
  DETECTED=$C_SLURM_CONFIG_DIR/muster/environment.d/detected.env
  if [[ $kind != none ]]; then
    fabric::present "$kind" || step::differs "$kind: no device" || wait::until "$WAIT_S" fabric::present "$kind" ||
      step::fail 69 "this node has no $kind, which cluster.yaml says it has: nothing in $DEVICES"
    if ((${N_GPUS:-0} > 0)); then
      if [[ $kind == efa ]]; then modules=(gdrdrv); else modules=(nvidia_peermem); fi
    fi
  fi
  case $kind in
    efa) fabric::efa ;;
    infiniband | roce) fabric::rdma "$kind" ;;
  esac
  fabric::modules "${modules[@]}"
  [[ $kind != efa ]] || fabric::efa_works || step::differs "fi_info shows no EFA" || wait::until 60 fabric::efa_works ||
    step::fail 69 "libfabric shows no EFA (fi_info -p efa): NCCL would go by TCP"
  if [[ $kind == none ]]; then want::absent "$DETECTED"; else fabric::tell_jobs; fi
  [[ -z $C_CONTAINERS_ENROOT ]] || fabric::tell_containers
}

main() { step::run "$@"; }

main "$@"
