#!/usr/bin/env bash
# Runs a command on a node from the head, as ssh would: on-node NODE CMD...
# No standard input; output arrives when the command ends. ON_NODE_TIMEOUT_S limits it (60).
# Exit status: the command's; 124 after the limit; 255 when the node is off, as ssh says it.
set -euo pipefail

CLUSTER=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly CLUSTER

main() {
  local -r limit_s=${ON_NODE_TIMEOUT_S:-60}
  local at rc
  if [[ $# -lt 2 || ! -d $CLUSTER/nodes/$1 ]]; then
    echo "on-node: no command or no node '${1:-}'. Fix: on-node n1 hostname" >&2
    exit 64
  fi
  if [[ ! -e $CLUSTER/nodes/$1/pid ]]; then
    echo "on-node: node $1 is off" >&2
    exit 255
  fi
  at=$(mktemp -d "$CLUSTER/requests/XXXXXXXX")
  # shellcheck disable=SC2064 # the folder is known now
  trap "rm -rf '$at'" EXIT
  printf '%s\0' "$1" "$limit_s" "${@:2}" >"$at/argv"
  # shellcheck disable=SC2016 # expands in the inner shell, which may wait for a reader
  timeout 5 bash -c 'echo "run $1" >"$2"' _ "${at##*/}" "$CLUSTER/bmc"
  for ((i = 0; i < 50 * (limit_s + 5); i++)); do
    [[ ! -e $at/rc ]] || break
    [[ -e $CLUSTER/nodes/$1/pid ]] || break
    sleep 0.02
  done
  rc=$(cat "$at/rc" 2>/dev/null) || rc=255
  cat "$at/out" 2>/dev/null || true
  cat "$at/err" >&2 2>/dev/null || true
  exit "$rc"
}

main "$@"
