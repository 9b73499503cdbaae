#!/usr/bin/env bash
# Runs Prometheus on the first head node; it asks the exporters of all nodes, and knows each figure's node, group and job.
#
# needs: packages hosts node_exporter
# roles: head
# when: monitoring.enabled node.primary
# optional: jobs run without figures
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly DEFAULTS=/etc/default/prometheus FOLDER=/etc/prometheus/muster

# It asks nobody who is there for a password: who wants to see it comes through ssh.
prometheus::args() {
  monitoring::args "$DEFAULTS" "--config.file=$FOLDER/prometheus.yml" "--web.listen-address=127.0.0.1:$C_MONITORING_PROMETHEUS_PORT" \
    "--storage.tsdb.retention.time=${C_MONITORING_RETENTION_DAYS}d"
}

prometheus::daemon() {
  # Where to keep figures Debian says in the program itself.
  monitoring::daemon prometheus "$(prometheus::args)"
}

prometheus::configuration() {
  cat <<CONF
# Written by muster from cluster.yaml. Rules of your own go to /etc/prometheus/rules/*.yml.
global:
  scrape_interval: 15s
  external_labels: {cluster: "$C_NAME"}
rule_files: ["/etc/prometheus/rules/*.yml"]
scrape_configs:
  - job_name: prometheus
    static_configs:
      - {targets: ["127.0.0.1:$C_MONITORING_PROMETHEUS_PORT"], labels: {node: "$N_NAME"}}
  - job_name: node
    file_sd_configs: [{files: ["$FOLDER/node.json"]}]
  - job_name: gpu
    file_sd_configs: [{files: ["$FOLDER/gpu.json"]}]
    metric_relabel_configs:
      # Slurm's job by the name that the other figures have, too: the label "job" is Prometheus's own.
      - {source_labels: [hpc_job], regex: "(.+)", target_label: slurm_job}
      - {regex: hpc_job, action: labeldrop}
CONF
}

# prometheus::targets PORT [gpu]: every node, or those with GPUs. Prometheus reads such a file again by itself.
prometheus::targets() {
  local i comma=
  echo "["
  for i in "${!NODES_NAME[@]}"; do
    [[ ${2:-} != gpu ]] || ((${NODES_GPUS[i]:-0} > 0)) || continue
    printf '%s{"targets": ["%s"], "labels": {"node": "%s", "group": "%s", "role": "%s"}}\n' "$comma" \
      "$(monitoring::address "${NODES_ADDRESS[i]:-${NODES_NAME[i]}}" "$1")" "${NODES_NAME[i]}" "${NODES_GROUP[i]}" "${NODES_ROLE[i]}"
    comma=,
  done
  echo "]"
}

prometheus::answers() {
  wait::http 127.0.0.1 "$C_MONITORING_PROMETHEUS_PORT" /-/ready
}

step::state() {
  want::packages prometheus
  want::folder "$FOLDER" 0755
  prometheus::targets "$C_MONITORING_NODE_PORT" | want::file "$FOLDER/node.json" 0644
  prometheus::targets "$C_MONITORING_DCGM_PORT" gpu | want::file "$FOLDER/gpu.json" 0644
  prometheus::configuration | want::file "$FOLDER/prometheus.yml" 0644
  printf 'ARGS="%s"\n' "$(prometheus::args)" | want::block "$DEFAULTS"
  step::checking && ! command -v prometheus >/dev/null && return 0
  step::checking || timeout 60 promtool check config "$FOLDER/prometheus.yml" >/dev/null ||
    step::fail 78 "Prometheus would not start with the rules in /etc/prometheus/rules: promtool check config $FOLDER/prometheus.yml"
  want::service_with "$(service::sum "$DEFAULTS" "$FOLDER/prometheus.yml")" prometheus prometheus prometheus::daemon
  prometheus::answers || step::differs "Prometheus does not answer" || wait::until 120 prometheus::answers ||
    step::fail 75 "Prometheus does not answer at port $C_MONITORING_PROMETHEUS_PORT: who else listens there?"
}

main() { step::run "$@"; }

main "$@"
