#!/usr/bin/env bash
# Runs the DCGM exporter on nodes with GPUs: load, memory, temperature, errors and links of each, and whose job it is.
#
# needs: packages hosts node_exporter
# roles: compute
# when: monitoring.enabled node.gpus
# optional: jobs run without figures
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly UNIT=nvidia-dcgm-exporter PACKAGE=datacenter-gpu-manager-exporter
readonly DROP_IN=/etc/systemd/system/$UNIT.service.d/muster.conf JOBS=/run/muster/gpu_jobs

# A host engine that runs already is asked: two of them would fight for the counters.
dcgm_exporter::words() {
  echo "--address=$(monitoring::address "$N_ADDRESS" "$C_MONITORING_DCGM_PORT") --hpc-job-mapping-dir=$JOBS"
  if service::runs nvidia-dcgm nv-hostengine; then echo "--remote-hostengine-info=localhost:5555"; fi
}

dcgm_exporter::daemon() {
  local -a words
  read -ra words <<<"$(dcgm_exporter::words | xargs)"
  setsid dcgm-exporter "${words[@]}" >>/var/log/dcgm-exporter.log 2>&1 9>&- &
  disown
}

# Its first answer comes when DCGM has looked at every GPU.
dcgm_exporter::answers() {
  wait::http "${N_ADDRESS:-127.0.0.1}" "$C_MONITORING_DCGM_PORT" /metrics
}

step::state() {
  command -v dcgm-exporter >/dev/null || step::differs "dcgm-exporter: missing" ||
    packages::need "$PACKAGE" "add NVIDIA's source of CUDA packages"
  want::file "$DROP_IN" 0644 <<CONF
# Written by muster.
[Service]
ExecStart=
ExecStart=$(command -v dcgm-exporter || echo /usr/bin/dcgm-exporter) $(dcgm_exporter::words | xargs)
CONF
  step::checking && ! command -v dcgm-exporter >/dev/null && return 0
  want::service_with "$(service::sum "$DROP_IN")" "$UNIT" dcgm-exporter dcgm_exporter::daemon
  dcgm_exporter::answers || step::differs "the DCGM exporter does not answer" || wait::until 120 dcgm_exporter::answers ||
    step::fail 75 "the DCGM exporter does not answer at port $C_MONITORING_DCGM_PORT: who else listens there?"
}

main() { step::run "$@"; }

main "$@"
