#!/usr/bin/env bash
# Asks the "BMC" outside the nodes to switch one: bmc replace|reboot|off|on NODE
# As with a cloud's API the answer is only "accepted": the work happens afterwards. Exit 64: bad request.
set -euo pipefail

CLUSTER=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly CLUSTER

bmc::refuse() {
  echo "bmc: $1. Fix: bmc replace|reboot|off|on NODE" >&2
  exit 64
}

main() {
  [[ $# == 2 ]] || bmc::refuse "$# words instead of 2"
  case $1 in
    replace | reboot | off | on) ;;
    *) bmc::refuse "unknown verb '$1'" ;;
  esac
  local node
  node=$(basename "$(readlink -f "$CLUSTER/nodes/$2")") # Slurm's name of it may be another one
  [[ $2 != */* && $node =~ ^n[0-9]+$ && -d $CLUSTER/nodes/$node ]] || bmc::refuse "no node '$2'"
  # shellcheck disable=SC2016 # expands in the inner shell, which may wait for a reader
  timeout 5 bash -c 'echo "$1 $2" >"$3"' _ "$1" "$node" "$CLUSTER/bmc"
  echo "accepted: $1 $2"
}

main "$@"
