#!/usr/bin/env bash
# Sets the clock by the time servers of the cluster: Slurm and munge refuse a node whose clock differs.
#
# needs: packages
# when: time_servers
# optional: a machine of a cloud has a clock already
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

time::daemon() {
  /usr/sbin/chronyd
}

step::state() {
  local changed=
  want::packages chrony
  [[ -e /etc/chrony/sources.d/muster.sources ]] || changed=yes
  printf 'server %s iburst\n' "${C_TIME_SERVERS[@]}" | want::file /etc/chrony/sources.d/muster.sources 0644
  step::checking && ! command -v chronyd >/dev/null && return 0
  want::service chrony chronyd time::daemon
  # New sources are read without a restart.
  step::checking || [[ -z $changed ]] || chronyc reload sources >/dev/null
}

main() { step::run "$@"; }

main "$@"
