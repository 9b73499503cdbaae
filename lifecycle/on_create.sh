#!/usr/bin/env bash
# The script that HyperPod's OnCreate names: it is called without arguments, in the folder that was uploaded to S3.
#
# The platform lists the machines in resource_config.json. cluster.yaml and provisioning_parameters.json are found
# beside this file; one of the two may be missing.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly HERE

main() {
  local -a words=(--resource-config "${SAGEMAKER_RESOURCE_CONFIG_PATH:-/opt/ml/config/resource_config.json}")
  [[ ! -f $HERE/provisioning_parameters.json ]] || words+=(--provisioning "$HERE/provisioning_parameters.json")
  [[ ! -f $HERE/cluster.yaml ]] || words=("$HERE/cluster.yaml" "${words[@]}")
  # What the platform's agent shows of a failure is the end of this output, if it has been read by then.
  bash "$HERE/create.sh" "${words[@]}" "$@" || {
    local -r rc=$?
    sleep "${MUSTER_FLUSH_S:-10}"
    exit "$rc"
  }
}

main "$@"
