#!/usr/bin/env bash
# What steps ask of Slurm itself.
set -euo pipefail

# Platforms have theirs apart.
export PATH=$PATH:/opt/slurm/bin:/opt/slurm/sbin

# The files that decide how Slurm's daemons run.
slurm::files() {
  find "$C_SLURM_CONFIG_DIR" -maxdepth 1 -name '*.conf' ! -name slurmdbd.conf | sort
}

slurm::setting() { # key default: of slurm.settings in cluster.yaml
  local i
  for i in "${!C_SLURM_SETTINGS_KEYS[@]}"; do
    if [[ ${C_SLURM_SETTINGS_KEYS[i],,} == "${1,,}" ]]; then
      echo "${C_SLURM_SETTINGS_VALUES[i]}"
      return
    fi
  done
  echo "$2"
}

# All controllers, as slurmd --conf-server takes them.
slurm::controllers() {
  local i port
  local -a found=()
  port=$(slurm::setting SlurmctldPort 6817)
  for i in "${!NODES_NAME[@]}"; do
    [[ ${NODES_ROLE[i]} != head ]] || found+=("${NODES_NAME[i]}:$port")
  done
  (IFS=, && echo "${found[*]}")
}

# One of the controllers listens.
slurm::controller_listens() {
  local one
  for one in $(slurm::controllers | tr , ' '); do
    ! wait::port "${one%:*}" "${one##*:}" || return 0
  done
  return 1
}

# slurm::around_jobs FOLDER: what lies in it is run by Slurm before or after each job, as its name prolog.d or epilog.d says.
# ParallelCluster has one folder for all nodes, which the head writes; HyperPod runs none.
slurm::around_jobs() {
  case $C_PLATFORM:$N_ROLE in
    plain:compute | parallelcluster:head) want::files "$1" "$C_SLURM_CONFIG_DIR/muster/${1##*/}" 0755 ;;
  esac
}

# Jobs of root's with this name.
slurm::jobs() { # name format of squeue
  timeout 30 squeue -h --user=root --name="$1" -o "$2"
}

slurm::no_jobs() { # name
  local found
  found=$(slurm::jobs "$1" %A) && [[ -z $found ]]
}

# slurm::end_jobs NAME SECONDS: also what a run that was killed has left, which would hold its nodes until its time is over.
slurm::end_jobs() {
  slurm::no_jobs "$1" || {
    timeout 60 scancel --user=root --name="$1" || true
    wait::until "$2" slurm::no_jobs "$1"
  }
}

# slurm::srun NAME SECONDS WORD...: srun, with what it says; 75 if its nodes have not become ready within SECONDS.
#
# A slurmd that ends while it runs the prolog, as 22.05 may when it is told of new files just then, never says that the prolog
# is over: the job stays in it until its time is, and so would we. The next job may have another end.
# 9: who is killed leaves srun behind, which must not keep our lock.
slurm::srun() {
  local -r name=$1 ready_s=$2 said=$MUSTER_STATE/srun.said
  local pid since=$SECONDS rc=0
  shift 2
  timeout -k 10 600 srun --job-name="$name" "$@" >"$said" 2>&1 9>&- </dev/null &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    [[ $(slurm::jobs "$name" %r) == Prolog ]] || since=$SECONDS
    if ((SECONDS - since > ready_s)); then
      slurm::end_jobs "$name" 120 || true
      rc=75
      break
    fi
    sleep 0.5
  done
  wait "$pid" || true
  cat "$said"
  rm -f "$said"
  return "$rc"
}

slurm::why() { # log
  grep -E 'error|fatal' "$1" 2>/dev/null | tail -1
}

main() {
  echo "this file is read by steps, not run" >&2
  exit 64
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
