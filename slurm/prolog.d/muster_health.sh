#!/bin/bash
# Slurm's Prolog: is this node fit? Every file of this folder is run, so no other kind may lie here.
# Never -e, and a file that is missing is no failure: that would drain the cluster.
set -uo pipefail

main() {
  local -r check=${BASH_SOURCE[0]%/*}/../muster_health.sh
  [[ ! -r $check ]] || exec /bin/bash "$check" prolog
}

main "$@"
