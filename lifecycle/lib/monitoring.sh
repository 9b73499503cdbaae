#!/usr/bin/env bash
# What exporters and Prometheus have in common: Debian starts each with $ARGS of a file in /etc/default.
set -euo pipefail

# monitoring::args FILE WORD...: what that file should say. An operator's own words in it stay, before ours.
monitoring::args() {
  local -r block="^# muster create, step $(basename "$0" .sh): "
  local own
  own=$(sed -e "/${block}from here\$/,/${block}to here\$/d" "$1" 2>/dev/null | sed -n 's/^ARGS=//p' | tail -n 1 | tr -d "\"'") || true
  echo "${own:+$own }${*:2}"
}

# monitoring::address ADDRESS PORT: as it stands on a command line; all addresses, if there is none.
monitoring::address() {
  [[ $1 != *:* ]] || set -- "[$1]" "$2"
  echo "$1:$2"
}

# monitoring::daemon PROGRAM ARGS: starts it where there is no systemd.
monitoring::daemon() {
  local -a words
  read -ra words <<<"$2"
  setsid runuser -u prometheus -- "$1" "${words[@]}" >>"/var/log/prometheus/$1.log" 2>&1 9>&- &
  disown
}

main() {
  echo "this file is read by steps, not run" >&2
  exit 64
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
