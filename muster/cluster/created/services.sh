#!/usr/bin/env bash
# Starts the daemons of a machine that boots, as systemd does on a real one: those of Slurm as their units do, all others by
# the steps that want them. Steps look at much more; nine machines that do so at once would need four times as long.
set -euo pipefail

readonly STEPS=/opt/lifecycle/steps
export MUSTER_STATE=/var/lib/muster/create MUSTER_FACTS=/var/lib/muster/create/facts.sh MUSTER_SECRETS=/etc/muster/secrets
export MUSTER_LIB=/opt/lifecycle/lib MUSTER_HOME=/opt/lifecycle/muster.pyz MUSTER_PYTHON=/usr/bin/python3
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"
# shellcheck source=/dev/null
source "$MUSTER_FACTS"

# Names of this machine's steps, in the order in which they ran: two spaces of indent are theirs alone.
services::steps() {
  sed -n 's/^  "\([a-z_]*\)": {$/\1/p' "$MUSTER_STATE/ledger.json"
}

# A slurmctld that has just started listens before it gives out files.
services::slurmd() {
  local -a options
  local SLURMD_OPTIONS=
  # shellcheck source=/dev/null
  source /etc/default/slurmd
  read -ra options <<<"$SLURMD_OPTIONS"
  wait::until 300 slurm::controller_listens && wait::until 60 slurmd "${options[@]}"
}

services::start() { # step
  case $1 in
    munge)
      install -d -o munge -g munge -m 0755 /run/munge
      runuser -u munge -- /usr/sbin/munged --num-threads=10
      ;;
    slurmctld) slurmctld ;;
    slurmd) services::slurmd ;;
    *) ! grep -qE 'want::service|service::restart' "$STEPS/$1.sh" || bash "$STEPS/$1.sh" apply ;;
  esac
}

main() {
  local step
  for step in $(services::steps); do services::start "$step"; done
}

main "$@"
