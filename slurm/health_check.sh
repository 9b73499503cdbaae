#!/bin/bash
# Slurm's HealthCheckProgram, which gets no arguments: checks the node, and drains it if it must.
set -uo pipefail

main() {
  local -r check=${BASH_SOURCE[0]%/*}/muster_health.sh
  [[ ! -r $check ]] || exec /bin/bash "$check" periodic
}

main "$@"
