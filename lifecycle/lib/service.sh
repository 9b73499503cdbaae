#!/usr/bin/env bash
# Daemons, under systemd where there is one, and without it in containers and on the local cluster.
#
# Without systemd only processes of our own process namespace count: those of containers on this machine are others'.
set -euo pipefail

# want::service UNIT PROGRAM CMD...: it runs, and starts with the machine. Where there is no systemd, CMD starts it, and
# goes to the background by itself.
want::service() {
  service::runs "$1" "$2" || step::differs "$1 does not run" || service::start "$@"
}

# want::service_with SUM UNIT PROGRAM CMD...: the same, and it was started when its files had this sum (see service::sum).
# What it was started with is written down after it runs: who is killed in between starts it once more.
want::service_with() {
  local -r sum=$1
  shift
  if ! service::runs "$1" "$2"; then
    step::differs "$1 does not run" || service::start "$@"
  elif ! service::started_with "$sum" "$1" "$2"; then
    step::differs "$1 runs with older files" || service::restart "$@"
  fi
  step::checking || service::note_start "$sum" "$1"
}

service::note_start() { # sum unit
  echo "$1" >"$MUSTER_STATE/started.$2.tmp"
  mv -f "$MUSTER_STATE/started.$2.tmp" "$MUSTER_STATE/started.$2"
}

service::started_with() { # sum unit program
  service::runs "$2" "$3" && service::noted "$1" "$2"
}

service::noted() { # sum unit
  [[ $(cat "$MUSTER_STATE/started.$2" 2>/dev/null) == "$1" ]]
}

# One word for the content of files; those that are missing count as that.
service::sum() { # file...
  local file
  for file; do
    echo "$file"
    cat "$file" 2>/dev/null || echo missing
  done | sha256sum | cut -d ' ' -f 1
}

# Its configuration has changed: what runs runs with the old one. What is noted is true no longer, also for a run after this
# one is killed: files may be changed back by then.
service::restart() { # unit program cmd...
  rm -f "$MUSTER_STATE/started.$1"
  if service::systemd; then
    systemctl daemon-reload
    systemctl enable --quiet "$1"
    systemctl restart "$1"
  else
    pkill -x --ns $$ --nslist pid "$(service::short "$2")" || true
    wait::until 20 service::gone "$2" || step::fail 75 "$1 does not end"
    service::start "$@"
  fi
}

service::start() { # unit program cmd...
  if service::systemd; then
    systemctl daemon-reload
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
    service::pids "$2" >/dev/null
  fi
}

service::gone() {
  ! service::pids "$1" >/dev/null
}

service::pids() { # program
  pgrep -x --ns $$ --nslist pid "$(service::short "$1")"
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
