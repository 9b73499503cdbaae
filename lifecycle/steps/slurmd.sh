#!/usr/bin/env bash
# Runs slurmd on compute nodes that have all their GPUs, with the files of the head, and waits until slurmctld takes the node.
#
# needs: packages hosts munge users mounts scratch limits slurm_programs deep_health enroot pyxis fabric
# roles: compute
# when: platform=plain
# limit_s: 1800
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly LOG=/var/log/slurm/slurmd.log DEFAULTS=/etc/default/slurmd DROP_INS=/etc/systemd/system/slurmd.service.d

# How many GPUs the driver shows; one that is lost has no such line.
slurmd::gpus() {
  local shown
  shown=$(timeout 60 nvidia-smi -L 2>/dev/null | grep -c '^GPU [0-9]*:') || true
  echo "${shown:-0}"
}

slurmd::has_gpus() {
  local i
  [[ $(slurmd::gpus) == "${N_GPUS:-0}" ]] || return 1
  for ((i = 0; i < N_GPUS; i++)); do
    [[ -c /dev/nvidia$i ]] || return 1
  done
}

# A node with seven of eight GPUs must never take a job for eight.
slurmd::gate() {
  ((${N_GPUS:-0} > 0)) || return 0
  slurmd::has_gpus || step::differs "$(slurmd::gpus) of $N_GPUS GPUs are there" || wait::until "${MUSTER_GPU_WAIT_S:-180}" slurmd::has_gpus ||
    step::fail 69 "$(slurmd::gpus) of $N_GPUS GPUs are there (nvidia-smi -L, /dev/nvidia*): slurmd is not started"
}

# What an operator wrote there comes first.
slurmd::options() {
  local own
  own=$(sed '/^# muster create, step slurmd: from here$/,/^# muster create, step slurmd: to here$/d' "$DEFAULTS" 2>/dev/null |
    sed -n "s/^SLURMD_OPTIONS=//p" | tail -1 | tr -d "\"'") || true
  echo "${own:+$own }--conf-server $(slurm::controllers)$([[ $(hostname -s) == "$N_NAME" ]] || echo " -N $N_NAME")"
}

# A slurmctld that has just started listens before it gives out files.
slurmd::daemon() {
  local -a options
  read -ra options <<<"$(slurmd::options)"
  wait::until 60 slurmd "${options[@]}" || step::fail 75 "slurmd does not start: $(slurm::why "$LOG")"
}

# What slurmctld says of the node: its State, or the Reason why it is out of service.
slurmd::seen() { # key
  timeout 20 scontrol -o show node "$N_NAME" 2>/dev/null | sed -nE "s/.* $1=([^[]*).*/\\1/p"
}

slurmd::taken() {
  local state
  state=$(slurmd::seen State | cut -d ' ' -f 1)
  [[ -n $state && $state != *[*]* && $state != *UNKNOWN* && $state != *NOT_RESPONDING* ]]
}

# No use in waiting for a slurmd that has ended; systemd starts its own again in a while.
slurmd::taken_or_ended() {
  slurmd::taken || { ! service::systemd && service::gone slurmd; }
}

slurmd::wait_taken() {
  wait::until 120 slurmd::taken_or_ended || step::fail 75 "slurmctld does not know $N_NAME after 120 s: $(slurm::why "$LOG")"
  slurmd::taken || step::fail 75 "slurmd has ended: $(slurm::why "$LOG")"
}

# slurmctld drains a node that has less than slurm.conf says.
slurmd::fits() {
  local reason
  reason=$(slurmd::seen Reason) || true
  [[ $reason != Low* && $reason != *gres/* ]] ||
    step::fail 65 "slurmctld does not take $N_NAME, since it has less than cluster.yaml says: $reason"
}

step::state() {
  local -a files
  want::program slurmd slurmd
  want::program scontrol slurm-client
  want::folder /var/log/slurm 0755 "$C_SLURM_USER:$C_SLURM_USER"
  want::folder /var/spool/slurmd 0755
  [[ ! -e $C_SLURM_CONFIG_DIR/slurm.conf ]] ||
    step::fail 65 "$C_SLURM_CONFIG_DIR/slurm.conf would be read here in place of the head's: take it away"
  echo "SLURMD_OPTIONS=\"$(slurmd::options)\"" | want::block "$DEFAULTS"
  want::file "$DROP_INS/muster_configless.conf" 0644 <<'CONF'
# Written by muster: slurm.conf comes from slurmctld, which may come later. Debian's unit would start only where the file is.
[Unit]
ConditionPathExists=
[Service]
Restart=on-failure
RestartSec=5
CONF
  slurmd::gate
  step::checking && ! command -v slurmd >/dev/null && return 0
  step::checking || wait::until 900 slurm::controller_listens ||
    step::fail 75 "no slurmctld answers at $(slurm::controllers) after 900 s: is the head being created?"
  mapfile -t files < <(find "$DROP_INS" -name '*.conf' | sort)
  want::service_with "$(service::sum "$DEFAULTS" "${files[@]}")" slurmd slurmd slurmd::daemon
  slurmd::taken || step::differs "slurmctld does not know this node" || slurmd::wait_taken
  slurmd::fits
}

main() { step::run "$@"; }

main "$@"
