#!/usr/bin/env bash
# Starts the daemons of a machine that boots, as systemd does on a real one: the steps that want a service make sure that
# it runs. They are called without their runner, in its order, so that nine machines boot within seconds.
set -euo pipefail

readonly STEPS=/opt/lifecycle/steps STATE=/var/lib/muster/create

# Names of this machine's steps, in the order in which they ran: two spaces of indent are theirs alone.
services::steps() {
  sed -n 's/^  "\([a-z_]*\)": {$/\1/p' "$STATE/ledger.json"
}

main() {
  local step
  export MUSTER_FACTS=$STATE/facts.sh MUSTER_STATE=$STATE MUSTER_SECRETS=/etc/muster/secrets
  export MUSTER_LIB=/opt/lifecycle/lib MUSTER_HOME=/opt/lifecycle/muster.pyz MUSTER_PYTHON=/usr/bin/python3
  for step in $(services::steps); do
    if grep -qE 'want::service|service::restart' "$STEPS/$step.sh"; then
      bash "$STEPS/$step.sh" apply
    fi
  done
}

main "$@"
