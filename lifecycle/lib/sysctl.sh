#!/usr/bin/env bash
# Settings of the kernel: in a file for the next boot, and in the kernel that runs.
set -euo pipefail

# sysctl::want FILE KEY=VALUE...: the file has exactly these, and they hold. None: there is no such file.
sysctl::want() {
  local -r file=$1
  local one
  shift
  if (($# == 0)); then
    want::absent "$file"
    return
  fi
  { echo "# Written by muster." && printf '%s\n' "$@"; } | want::file "$file" 0644
  # In a container the kernel is another's.
  service::systemd || return 0
  for one; do
    [[ $(sysctl -n "${one%%=*}" 2>/dev/null) == "${one#*=}" ]] || step::differs "$one: not applied" ||
      sysctl -q -w "$one" || step::fail 1 "$one cannot be applied"
  done
}

main() {
  echo "this file is read by steps, not run" >&2
  exit 64
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
