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

# Somebody listens at a TCP port.
wait::port() { # host port
  # shellcheck disable=SC2016 # expands inside
  timeout 5 bash -c ': <>"/dev/tcp/$1/$2"' _ "$1" "$2" 2>/dev/null
}

main() {
  echo "this file is read by steps, not run" >&2
  exit 64
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
