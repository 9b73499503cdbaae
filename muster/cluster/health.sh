#!/usr/bin/env bash
# Slurm's HealthCheckProgram on every node: asks muster, which drains the node itself if it must.
# Always exits 0: a broken checker must not take healthy nodes away. Slurm gives it nothing but
# SLURMD_NODENAME, so the environment is made here.
set -uo pipefail

CLUSTER=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
LOG=$CLUSTER/log/health-$(hostname).log
readonly CLUSTER LOG

main() {
  local size
  export PATH=$CLUSTER/bin:/usr/sbin:/usr/bin:/sbin:/bin
  export SLURM_CONF=$CLUSTER/etc/slurm.conf MUSTER_SITE=$CLUSTER/site.yaml HOME=/
  export MUSTER_LOG_DIR=$CLUSTER/log MUSTER_STATE_DIR=$CLUSTER/local/muster
  size=$(stat -c %s "$LOG" 2>/dev/null || echo 0)
  ((size < 1000000)) || mv -f "$LOG" "$LOG.1"
  exec >>"$LOG" 2>&1 </dev/null
  timeout -k 1 20 muster check --when periodic --act || echo "muster check: exit status $?"
}

main "$@"
exit 0
