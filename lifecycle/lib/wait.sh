#!/usr/bin/env bash
# Waiting for something that comes late, with a limit, instead of sleeping blindly.
set -euo pipefail

# wait::until SECONDS CMD...: 0 as soon as it succeeds, 1 when the time is over. It looks often at first: most daemons are
# there within a moment, and a start of many machines is a chain of them.
wait::until() {
  local -r end=$((SECONDS + $1))
  local tenths=1
  shift
  until "$@"; do
    ((SECONDS < end)) || return 1
    sleep "0.$tenths"
    tenths=$((tenths < 5 ? tenths + 1 : 5))
  done
}

# Somebody listens at a TCP port.
wait::port() { # host port
  # shellcheck disable=SC2016 # expands inside
  timeout 5 bash -c ': <>"/dev/tcp/$1/$2"' _ "$1" "$2" 2>/dev/null
}

# wait::http HOST PORT PATH: whoever listens there answers with 200.
wait::http() {
  # shellcheck disable=SC2016 # expands inside
  timeout 10 bash -c 'exec 3<>"/dev/tcp/$1/$2" && printf "GET %s HTTP/1.0\r\nHost: %s\r\n\r\n" "$3" "$1" >&3 &&
    read -r line <&3 && [[ $line == "HTTP/"*" 200"* ]]' _ "$@" 2>/dev/null
}

main() {
  echo "this file is read by steps, not run" >&2
  exit 64
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
