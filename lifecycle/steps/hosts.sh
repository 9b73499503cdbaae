#!/usr/bin/env bash
# Puts the nodes with an address into /etc/hosts: a name service that comes late, or not at all, stops no daemon.
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

hosts::lines() {
  local i
  for i in "${!NODES_NAME[@]}"; do
    [[ -z ${NODES_ADDRESS[i]} ]] || echo "${NODES_ADDRESS[i]} ${NODES_NAME[i]}"
  done
}

# Debian gives a machine's own name to 127.0.1.1. A daemon that listens there is heard by nobody.
hosts::own_name() {
  if [[ -n $N_ADDRESS ]] && grep -qE "^127\.0\.1\.1\s.*\b$N_NAME\b" /etc/hosts; then
    step::differs "/etc/hosts: 127.0.1.1 is $N_NAME" ||
      sed -E "/^127\.0\.1\.1\s/s/\s$N_NAME(\.\S+)?\b//g; /^127\.0\.1\.1\s*$/d" /etc/hosts | want::file /etc/hosts 0644
  fi
}

step::state() {
  hosts::own_name
  hosts::lines | want::block /etc/hosts
}

main() { step::run "$@"; }

main "$@"
