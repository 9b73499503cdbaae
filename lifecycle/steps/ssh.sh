#!/usr/bin/env bash
# Lets ssh between nodes ask nothing: a node that was replaced has another host key under the same name.
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

# Who can answer at the address of a node of ours is inside the cluster's network already. For hosts outside of the
# cluster nothing changes. The command calls the key that a node shows a known one: so ssh need not be told to be silent
# about new keys, and with that about why a node refuses somebody.
step::state() {
  want::file /etc/ssh/ssh_config.d/muster.conf 0644 <<CONF
# Written by muster.
Host ${NODES_NAME[*]}
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  IgnoreUnknown KnownHostsCommand
  KnownHostsCommand /bin/echo %H %t %K
CONF
}

main() { step::run "$@"; }

main "$@"
