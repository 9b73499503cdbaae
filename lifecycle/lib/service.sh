#!/usr/bin/env bash
# Daemons, under systemd where there is one, and without it in containers and on the local cluster.
set -euo pipefail

# want::service UNIT PROGRAM CMD...: it runs, and starts with the machine. Where there is no systemd, CMD starts it, and
# goes to the background by itself.
want::service() {
  service::runs "$1" "$2" || step::differs "$1 does not run" || service::start "$@"
}

# Its configuration has changed: what runs runs with the old one.
service::restart() { # unit program cmd...
  if service::systemd; then
    systemctl enable --quiet "$1"
    systemctl restart "$1"
  else
    pkill -x "$(service::short "$2")" || true
    wait::until 20 service::gone "$2" || step::fail 75 "$1 does not end"
    service::start "$@"
  fi
}

service::start() { # unit program cmd...
  if service::systemd; then
    systemctl enable --quiet "$1"
    systemctl start "$1"
  else
    "${@:3}" 9>&- </dev/null >/dev/null # 9: the daemon must not keep our lock
  fi
}

service::systemd() {
  [[ -d /run/systemd/system ]]
}

service::runs() { # name program
  if service::systemd; then
    systemctl is-active --quiet "$1" && systemctl is-enabled --quiet "$1"
  else
    pgrep -x "$(service::short "$2")" >/dev/null
  fi
}

service::gone() {
  ! pgrep -x "$(service::short "$1")" >/dev/null
}

# The kernel keeps 15 letters of a name.
service::short() {
  echo "${1:0:15}"
}

main() {
  echo "this file is read by steps, not run" >&2
  exit 64
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
