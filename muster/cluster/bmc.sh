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
  [[ $2 =~ ^n[0-9]+$ && -d $CLUSTER/nodes/$2 ]] || bmc::refuse "no node '$2'"
  # shellcheck disable=SC2016 # expands in the inner shell, which may wait for a reader
  timeout 5 bash -c 'echo "$1 $2" >"$3"' _ "$1" "$2" "$CLUSTER/bmc"
  echo "accepted: $1 $2"
}

main "$@"
