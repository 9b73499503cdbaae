#!/usr/bin/env bash
# Runs the node exporter: processor, memory, disks and networks of this node as figures, and which jobs are on it.
#
# needs: packages hosts
# when: monitoring.enabled
# optional: jobs run without figures
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly NAME=prometheus-node-exporter DEFAULTS=/etc/default/prometheus-node-exporter FOLDER=/var/lib/prometheus/node-exporter

# At the address that the cluster knows: nobody outside of it is to read them.
node_exporter::args() {
  monitoring::args "$DEFAULTS" "--web.listen-address=$(monitoring::address "$N_ADDRESS" "$C_MONITORING_NODE_PORT")" \
    "--collector.textfile.directory=$FOLDER"
}

node_exporter::daemon() {
  monitoring::daemon "$NAME" "$(node_exporter::args)"
}

node_exporter::answers() {
  wait::http "${N_ADDRESS:-127.0.0.1}" "$C_MONITORING_NODE_PORT" /metrics
}

step::state() {
  want::packages "$NAME"
  printf 'ARGS="%s"\n' "$(node_exporter::args)" | want::block "$DEFAULTS"
  # The prolog writes there which jobs are here, the epilog removes it; after a crash the next boot does.
  want::file /etc/tmpfiles.d/muster-jobs.conf 0644 <<CONF
# Written by muster.
r! $FOLDER/muster_job_*.prom
d /run/muster/gpu_jobs 0755 root root
CONF
  want::folder /run/muster/gpu_jobs 0755
  step::checking && ! command -v "$NAME" >/dev/null && return 0
  want::service_with "$(service::sum "$DEFAULTS")" "$NAME" "$NAME" node_exporter::daemon
  node_exporter::answers || step::differs "the node exporter does not answer" || wait::until 30 node_exporter::answers ||
    step::fail 75 "the node exporter does not answer at port $C_MONITORING_NODE_PORT: who else listens there?"
}

main() { step::run "$@"; }

main "$@"
