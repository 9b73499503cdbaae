#!/bin/bash
# muster's health check as Slurm calls it: muster_health.sh prolog|epilog|periodic
#
# When a prolog or epilog fails Slurm drains the node. So this one fails only if the check has come to
# its end and its last line says that the node is unfit. Whatever happens to the check itself lets the
# job start: no Python, no muster, a traceback, a wrong site file, a full disk, a process that cannot
# even be killed. As HealthCheckProgram it always ends with 0; there `--act` drains the node.
#
# Slurm gives its programs no PATH. muster.env beside this file, if there is one, is read as bash and
# may set PATH, MUSTER, MUSTER_SITE, MUSTER_STATE_DIR, MUSTER_LOG_DIR, SLURM_CONF, HEALTH_LOG,
# HEALTH_LIMIT_S and HEALTH_OPTIONS.

unfit=0 round=3           # a file descriptor: the log's, until there is a lock
trap 'exit "$unfit"' EXIT # also when a line below fails in a way that nobody thought of

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/
readonly HERE=${BASH_SOURCE[0]%/*}
# shellcheck source=/dev/null
[[ ! -r $HERE/muster.env ]] || { set -a && source "$HERE/muster.env" && set +a; }

# Never -e: no failure of a command may become ours.
set -uo pipefail

# Where the lines go that nobody reads at once; a log that cannot be written is done without.
health::open_log() {
  local -r log=${HEALTH_LOG:-/dev/null}
  local size
  size=$(stat -L -c %s "$log" 2>/dev/null) || size=0
  ((size < 1000000)) || mv -f "$log" "$log.1"
  { exec 3>>"$log"; } 2>/dev/null || exec 3>/dev/null
}

# One round at a time: on a node so slow that a round outlasts Slurm's interval, rounds would pile up
# and take the rest of it. The lock is this shell's, which ends soon even if the check cannot.
health::is_first() {
  { exec {round}>"${MUSTER_STATE_DIR:-/var/lib/muster}/periodic.lock"; } 2>/dev/null || return 0
  flock -n -E 75 "$round" 2>/dev/null
  (($? != 75))
}

# Sets REPLY to the last line that the check says within its limit. The check writes into a pipe of
# ours: nothing of it can hold Slurm's pipes, and it is left behind when it cannot be killed.
health::ask() {
  local -r limit_s=$1 mode=$2
  local -r ends=$((SECONDS + limit_s + 3))
  local -a options=()
  local line said
  read -ra options <<<"${HEALTH_OPTIONS:-}" || true
  [[ $mode != periodic ]] || options+=(--act)
  REPLY=
  exec {said}< <(
    exec 3>&- {round}>&- setsid timeout -k 1 "$limit_s" "${MUSTER:-muster}" check --when "$mode" --result \
      "${options[@]}" </dev/null 2>&1
  )
  while ((SECONDS < ends)) && IFS= read -r -t "$((ends - SECONDS))" -u "$said" line; do
    REPLY=$line
    echo "$line" >&3
  done
  exec {said}<&-
}

main() {
  local limit_s
  case ${1:-} in
    prolog) limit_s=12 ;;
    epilog) limit_s=32 ;;
    periodic) limit_s=50 ;;
    *)
      echo "muster_health: mode '${1:-}' is none of prolog, epilog, periodic" >&2
      return
      ;;
  esac
  health::open_log
  if [[ $1 == periodic ]] && ! health::is_first; then
    echo "muster_health: the round before this one has not ended: no check this time" >&3
    return
  fi
  health::ask "${HEALTH_LIMIT_S:-$limit_s}" "$1"
  [[ $1 != periodic ]] || return
  if [[ $REPLY =~ ^HEALTH_CHECK_RESULT:[^:]+:(Passed|Failed|Skipped): ]]; then
    [[ ${BASH_REMATCH[1]} != Failed ]] || unfit=1
    echo "$REPLY" # slurmd writes it into its log when we fail
  else
    printf 'muster_health: the check did not come to its end: %q\n' "${REPLY:0:200}"
  fi
}

main "$@"
