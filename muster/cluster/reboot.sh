#!/usr/bin/env bash
# Slurm's RebootProgram, run on the node itself: asks the BMC, as a node cannot switch itself on.
set -euo pipefail

CLUSTER=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly CLUSTER

main() {
  "$CLUSTER/bin/bmc" reboot "$(hostname)" >>"$CLUSTER/log/reboot.log" 2>&1
}

main "$@"
