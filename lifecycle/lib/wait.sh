#!/usr/bin/env bash
# Waiting for something that comes late, with a limit, instead of sleeping blindly.
set -euo pipefail

# wait::until SECONDS CMD...: 0 as soon as it succeeds, 1 when the time is over.
wait::until() {
  local -r end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || return 1
    sleep 0.5
  done
}

main() {
  echo "this file is read by steps, not run" >&2
  exit 64
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
