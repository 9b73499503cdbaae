#!/usr/bin/env bash
# A hook of Enroot: gives the container the variables of the fabric that this node has.
#
# The values stand in environ.d/fabric/KIND.env and nowhere else. Which file it is, and what is meant by ${INTERFACE},
# ${DEVICES} and ${MELLANOX} in it, is found at each start: variables of another machine send the traffic through TCP,
# in silence. They win over the image's, and lose against the site's other files in environ.d and --container-env.
# Called as `20-muster-fabric.sh print` it writes NAME=value lines, for jobs without a container.
set -euo pipefail

readonly ROOT=${MUSTER_NODE_ROOT:-} # tests have another /sys and /proc
readonly VALUES=${ENROOT_SYSCONF_PATH:-/etc/enroot}/environ.d/fabric

fabric::fail() { # Enroot shows what is said here, and the container does not start
  echo "20-muster-fabric.sh: $1" >&2
  exit 1
}

# "KIND DRIVER DEVICE:PORT" of each port that carries data.
fabric::ports() {
  local port device driver layer=
  for port in "$ROOT"/sys/class/infiniband/*/ports/*; do
    [[ -r $port/state && $(<"$port/state") == "4: ACTIVE" ]] || continue
    device=${port%/ports/*}
    driver=$(readlink "$device/device/driver") || continue
    driver=${driver##*/}
    [[ ! -r $port/link_layer ]] || layer=$(<"$port/link_layer")
    case $driver/$layer in
      efa/*) echo "efa $driver ${device##*/}:${port##*/}" ;;
      */InfiniBand) echo "infiniband $driver ${device##*/}:${port##*/}" ;;
      */Ethernet) echo "roce $driver ${device##*/}:${port##*/}" ;;
    esac
  done
}

# What the node has; or what the site says it has (environ.d/fabric/expected), unless that is not so.
fabric::kind() { # ports
  local expected=auto kind
  [[ ! -r $VALUES/expected ]] || expected=$(<"$VALUES/expected")
  for kind in efa infiniband roce; do
    if [[ $expected =~ ^(auto|$kind)$ ]] && grep -q "^$kind " <<<"$1"; then
      echo "$kind"
      return
    fi
  done
  [[ $expected =~ ^(auto|none)$ ]] ||
    fabric::fail "no active port of kind '$expected' on $(uname -n). Fix: look at 'muster check' there"
  echo tcp
}

# Of the default route; of several, the one that is taken first.
fabric::interface() {
  awk '$2 == "00000000" && $8 == "00000000" { print $7, $1 }' "$ROOT/proc/net/route" | sort -n | awk 'NR == 1 { print $2 }'
}

# NAME=value lines of one kind.
fabric::lines() { # kind ports
  local -r mine=$(grep "^$1 " <<<"$2") interface=$(fabric::interface)
  local -r devices=$(awk '{ print $3 }' <<<"$mine" | paste -sd,)
  local mellanox=all line value
  # Mellanox's hook shows the container the devices of that make, and hides all others.
  if grep -qv ' mlx[45]_core ' <<<"$mine"; then mellanox=none; fi
  while read -r line; do
    [[ $line =~ ^[A-Z_][A-Z0-9_]*=. ]] || continue
    value=${line#*=}
    value=${value//\$\{INTERFACE\}/$interface}
    value=${value//\$\{DEVICES\}/$devices}
    value=${value//\$\{MELLANOX\}/$mellanox}
    [[ -z ${value#=} ]] || echo "${line%%=*}=$value"
  done <"$VALUES/$1.env"
}

fabric::last() { # name, file with NAME=value lines: the value that counts
  [[ ! -r $2 ]] || sed -n "s/^$1=//p" "$2" | tail -n 1 | tr -d "\"'"
}

fabric::add() { # NAME=value
  local -r now=$(fabric::last "${1%%=*}" "$ENROOT_ENVIRON")
  # Not the image's word, so somebody's who knows better: the site's, or the job's.
  if [[ -z $now || $now == "$(fabric::last "${1%%=*}" "$ENROOT_ROOTFS/etc/environment")" ]]; then
    echo "$1" >>"$ENROOT_ENVIRON"
  fi
}

main() {
  local ports kind lines line
  ports=$(fabric::ports)
  kind=$(fabric::kind "$ports")
  [[ -r $VALUES/$kind.env ]] || fabric::fail "no $VALUES/$kind.env. Fix: install it with this hook"
  lines=$(fabric::lines "$kind" "$ports")
  if [[ ${1:-} == print ]]; then
    echo "$lines"
    return
  fi
  while read -r line; do
    fabric::add "$line"
  done <<<"$lines"
}

main "$@"
