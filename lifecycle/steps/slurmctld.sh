#!/usr/bin/env bash
# Runs slurmctld on head nodes, after accounting; starts it again only when its files have changed and Slurm accepts them.
#
# needs: packages hosts munge users mounts slurm_conf slurmdbd
# roles: head
# when: platform=plain
# limit_s: 1200
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly LOG=/var/log/slurm/slurmctld.log DBD_PORT=6819

slurmctld::answers() {
  timeout 10 scontrol ping 2>/dev/null | grep -q " at $N_NAME is UP"
}

# A slurmctld of its own has read the files before the real one does: a mistake stops no cluster that runs.
slurmctld::accepted() {
  local said
  said=$(step::muster slurm-conf check "$MUSTER_STATE/description.json" 2>&1) ||
    step::fail 78 "Slurm does not accept the files in $C_SLURM_CONFIG_DIR, nothing was started: $said"
}

# Without slurmdbd it would not start, and slurmdbd takes no job of a cluster that it does not know.
slurmctld::accounting() {
  [[ -n $ACCOUNTING_NODE ]] || return 0
  wait::until 600 wait::port "$ACCOUNTING_NODE" "$DBD_PORT" ||
    step::fail 75 "slurmdbd on $ACCOUNTING_NODE does not answer after 600 s"
  slurmctld::known_to_accounting || timeout 60 sacctmgr -i add cluster "$C_NAME" || wait::until 60 slurmctld::known_to_accounting ||
    step::fail 75 "slurmdbd does not take cluster $C_NAME"
}

slurmctld::known_to_accounting() {
  timeout 30 sacctmgr -nP show cluster format=cluster 2>/dev/null | grep -qxF "${C_NAME,,}"
}

# Whether nodes may run with files of a slurmctld before: of this machine, or of the one that it replaces.
slurmctld::ran_before() {
  [[ -e $C_SLURM_STATE_DIR/clustername ]] || timeout 20 test -e "$C_SHARED_DIR/ledger/$N_NAME.json"
}

# With the files that are there now. Nodes take theirs from it; those that run already must be told. At its very first start
# there are none: a slurmd that is just starting may crash when it is told. Files that it was started with before are those
# that Slurm accepted and nodes have: this machine has only booted.
slurmctld::restart() { # sum of the files
  local again=
  if ! service::noted "$1" slurmctld; then
    ! slurmctld::ran_before || again=yes
    slurmctld::accepted
  fi
  slurmctld::accounting
  service::restart slurmctld slurmctld slurmctld
  wait::until 60 slurmctld::answers || step::fail 75 "slurmctld does not answer after 60 s: $(slurm::why "$LOG")"
  [[ -z $again ]] || timeout 60 scontrol reconfigure || echo "not all nodes could be told of new files: they ask when they start"
  service::note_start "$1" slurmctld
}

step::state() {
  local sum
  local -a files
  want::program slurmctld slurmctld
  want::folder /var/log/slurm 0755 "$C_SLURM_USER:$C_SLURM_USER"
  want::folder "$C_SLURM_STATE_DIR" 0755 "$C_SLURM_USER:$C_SLURM_USER"
  step::checking && ! command -v slurmctld >/dev/null && return 0
  mapfile -t files < <(slurm::files)
  sum=$(service::sum "${files[@]}")
  service::started_with "$sum" slurmctld slurmctld || step::differs "slurmctld does not run with the files that are there" ||
    slurmctld::restart "$sum"
  slurmctld::answers || step::differs "slurmctld does not answer" || wait::until 60 slurmctld::answers ||
    step::fail 75 "slurmctld does not answer after 60 s: $(slurm::why "$LOG")"
  [[ -z $ACCOUNTING_NODE ]] || slurmctld::known_to_accounting || step::differs "accounting does not know the cluster" ||
    slurmctld::accounting
}

main() { step::run "$@"; }

main "$@"
