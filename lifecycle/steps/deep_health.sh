#!/usr/bin/env bash
# Tests the hardware of a compute node for minutes before it takes its first job, with muster check --when deep.
#
# needs: packages muster scratch mounts fabric
# roles: compute
# when: health.deep
# limit_s: 11400
# tries: 1
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

# What was tested: other GPUs, or another profile, have not been.
deep_health::hardware() {
  echo "profile $C_HEALTH_PROFILE"
  timeout 60 nvidia-smi -L 2>/dev/null || true
}

deep_health::passed() {
  [[ $(cat "$MUSTER_STATE/deep_health" 2>/dev/null) == "$(deep_health::hardware)" ]]
}

deep_health::test() {
  local said
  # It takes the whole node. Jobs that run would be slowed, and would spoil its figures.
  ! service::pids slurmstepd >/dev/null || step::fail 75 "jobs run here: drain the node, then test it"
  said=$(step::muster check --when deep --result 2>&1) || {
    echo "$said"
    step::fail 1 "$N_NAME is not fit: $(tail -n 1 <<<"$said")"
  }
  echo "$said"
  deep_health::hardware | want::file "$MUSTER_STATE/deep_health" 0644
}

step::state() {
  deep_health::passed || step::differs "the hardware has not passed its test" || deep_health::test
}

main() { step::run "$@"; }

main "$@"
