#!/usr/bin/env bash
# Stand-in for nvidia-smi on the nodes of a local cluster: reads which GPUs the "hardware" has.
#   nvidia-smi | -L | -q | --query-gpu=FIELD,... --format=csv[,noheader][,nounits]
#   nvidia-smi --query-compute-apps=... --format=csv: nobody uses these GPUs
# Exit status as the real one: 2 bad arguments, 6 no GPU at all, 15 a GPU is lost.
set -euo pipefail

CLUSTER=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly CLUSTER
FACTS=$CLUSTER/nodes/$(hostname)/gpus
readonly FACTS

smi::usage() {
  echo "$1"
  exit 2
}

# Sets REPLY to one field of the GPU in the caller's variables: no process per value.
smi::value() {
  local unit=' '
  [[ $format != *nounits* ]] || unit=
  case $1 in
    index) REPLY=$index ;;
    name | gpu_name) REPLY=$name ;;
    uuid | gpu_uuid) REPLY=$uuid ;;
    serial | gpu_serial) REPLY=$serial ;;
    pci.bus_id | gpu_bus_id) REPLY=$bus ;;
    driver_version) REPLY=550.90.07 ;;
    count) REPLY=$(grep -cv '|gone|' "$FACTS") ;;
    memory.total) REPLY=81559${unit:+ MiB} ;;
    memory.used) REPLY=0${unit:+ MiB} ;;
    utilization.gpu) REPLY=0${unit:+ %} ;;
    temperature.gpu) REPLY=$((31 + index)) ;;
    power.draw) REPLY=70.12${unit:+ W} ;;
    temperature.memory) REPLY=$((39 + index)) ;;
    vbios_version) REPLY=96.00.A5.00.01 ;;
    pstate) REPLY=P0 ;;
    persistence_mode | ecc.mode.*) REPLY=Enabled ;;
    mig.mode.*) REPLY=Disabled ;;
    fabric.state) REPLY=Completed ;;
    fabric.status) REPLY=Success ;;
    gpu_recovery_action) REPLY=None ;;
    pcie.link.gen.*) REPLY=5 ;;
    pcie.link.width.*) REPLY=16 ;;
    clocks_event_reasons.active) REPLY=0x0000000000000001 ;;
    ecc.errors.uncorrected.volatile.total) REPLY=$errors ;;
    ecc.errors.uncorrected.aggregate.sram.thresholdExceeded) REPLY=No ;;
    remapped_rows.pending | remapped_rows.failure) REPLY=No ;;
    ecc.errors.* | clocks_event_reasons_counters.* | remapped_rows.*) REPLY=0 ;;
    retired_pages.*) REPLY='[N/A]' ;; # a V100 has pages, an H100 has rows
    *) smi::usage "Field \"$1\" is not a valid field to query." ;;
  esac
}

smi::row() {
  local field row=
  for field in "${fields[@]}"; do
    smi::value "$field"
    row+="${row:+, }$REPLY"
  done
  echo "$row"
}

smi::each() { # FUNCTION: for every GPU that answers
  local index name uuid serial bus state errors rc=0
  while IFS='|' read -r index name uuid serial bus state errors; do
    case $state in
      ok) "$1" ;;
      lost)
        echo "Unable to determine the device handle for GPU ${bus#0000}: GPU is lost. " \
          "Reboot the system to recover this GPU" >&2
        rc=15
        ;;
      *) ;; # gone: not even on the bus
    esac
  done <"$FACTS"
  return "$rc"
}

smi::detail() {
  echo "GPU $bus"
  printf '        %-34s: %s\n' 'Replays Since Reset' 0 'GPU Current Temp' "$((31 + index)) C" \
    'GPU Slowdown Temp' '89 C' 'GPU Max Operating Temp' '87 C'
}

smi::list() { echo "GPU $index: $name (UUID: $uuid)"; }

main() {
  local format='' query='' each=smi::list
  local -a fields=()
  local word
  for word in "$@"; do
    case $word in
      -L | --list-gpus) ;;
      -q | --query) each=smi::detail ;;
      --query-compute-apps=*)
        word=${word#*=}
        echo "${word//,/, }"
        exit 0
        ;;
      --query-gpu=*) query=${word#*=} ;;
      --format=csv*) format=${word#*=} ;;
      *) smi::usage "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help." ;;
    esac
  done
  if [[ ! -s $FACTS ]] || ! grep -qv '|gone|' "$FACTS"; then
    echo "No devices were found"
    exit 6
  fi
  if [[ -z $query ]]; then
    smi::each "$each"
    return
  fi
  [[ -n $format ]] || smi::usage '"--format=" switch is missing. Please run nvidia-smi -h for help.'
  query=${query// /}
  IFS=, read -ra fields <<<"$query"
  [[ $format == *noheader* ]] || printf '%s\n' "${query//,/, }"
  smi::each smi::row
}

main "$@"
