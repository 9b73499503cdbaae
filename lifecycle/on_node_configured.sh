#!/usr/bin/env bash
# The script that ParallelCluster's OnNodeConfigured names. Args: the path of cluster.yaml, then KEY=VALUE.
#
# ParallelCluster passes the address of the script first, on some versions; it does not matter.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly HERE

main() {
  local word
  local -a words=(--cfnconfig "${MUSTER_CFNCONFIG:-/etc/parallelcluster/cfnconfig}")
  for word; do
    [[ $word == s3://* || $word == https://* ]] || words+=("$word")
  done
  exec bash "$HERE/create.sh" "${words[@]}"
}

main "$@"
