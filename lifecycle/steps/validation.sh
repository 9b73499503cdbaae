#!/usr/bin/env bash
# Runs a job of two nodes (one, if there is one) that uses mounts, GPUs and the network between them, and names who fails.
#
# needs: slurmctld homes ssh_keys
# roles: head
# when: platform=plain node.primary
# limit_s: 2400
# tries: 1
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly NAME=muster-validation

# On each node: what is wrong, a line each; nothing if all is well. $1: GPUs; then the nodes; after --, folders to write.
# shellcheck disable=SC2016 # expands there
readonly LOOK='
gpus=$1; shift
if ((gpus > 0)); then
  shown=$(timeout 60 nvidia-smi -L | grep -c "^GPU [0-9]*:") || true
  [[ $shown == "$gpus" ]] || echo "$SLURMD_NODENAME: shows ${shown:-0} of $gpus GPUs in a job"
fi
while [[ $1 != -- ]]; do
  timeout 20 bash -c ": <>/dev/tcp/$1/$SLURMD_PORT" 2>/dev/null || echo "$SLURMD_NODENAME: does not reach $1"
  shift
done
shift
for folder; do
  file=$folder/.muster-probe.$SLURMD_NODENAME.$$
  timeout 30 bash -c "echo \"\$2\" >\"\$1\" && rm \"\$1\"" _ "$file" "$$" 2>/dev/null ||
    echo "$SLURMD_NODENAME: cannot write $folder"
done
echo "$SLURMD_NODENAME: done"'

validation::partition() {
  local i chosen=${C_PARTITIONS_NAME[0]}
  for i in "${!C_PARTITIONS_NAME[@]}"; do
    [[ -z ${C_PARTITIONS_DEFAULT[i]} ]] || chosen=${C_PARTITIONS_NAME[i]}
  done
  echo "$chosen"
}

# Nodes of the partition in one of these states, such as idle; those that do not answer (idle*) are not among them.
validation::nodes() { # partition states, as a pattern of grep
  timeout 30 sinfo -h -N -p "$1" -o '%N %T' | sed -nE "s/ ($2)\$//p" | sort -uV
}

validation::wanted() { # partition
  local -r count=$(timeout 30 sinfo -h -N -p "$1" -o '%N' | sort -u | wc -l)
  ((count < 2)) && echo "$count" || echo 2
}

validation::enough() { # partition number
  (($(validation::nodes "$1" 'idle|allocated|mixed|completing' | wc -l) >= $2))
}

validation::out_of_service() { # partition
  timeout 30 sinfo -h -N -p "$1" -o '%N is %T (%E)' | grep -vE ' is (idle|allocated|mixed|completing) ' | sort -u |
    head -n 5 | paste -sd ';'
}

# The job on these nodes; prints what is wrong, a line each.
validation::job() { # partition node...
  local -r partition=$1
  shift
  local said name gres gpus=0 i since=$SECONDS
  local -a folders=() words
  for i in "${!C_MOUNTS_PATH[@]}"; do
    if [[ -n ${C_MOUNTS_WRITABLE[i]} ]] && grep -qx compute <<<"${C_MOUNTS_ROLES[i]}"; then folders+=("${C_MOUNTS_PATH[i]}"); fi
  done
  words=(--partition="$partition" --nodelist="$(IFS=, && echo "$*")" --nodes="$#" --ntasks="$#" --ntasks-per-node=1)
  gres=$(timeout 30 scontrol -o show node "$1" | sed -nE 's/.* Gres=(gpu:[^ (]+).*/\1/p')
  if [[ -n $gres ]]; then
    gpus=${gres##*:}
    words+=(--gres="$gres")
  fi
  # Where nothing ran on any node it may be for what a controller that died has left on them, and not for the nodes.
  for ((i = 0; i < 3 && SECONDS - since < 400; i++)); do
    said=$(SLURMD_PORT=$(slurm::setting SlurmdPort 6818) slurm::srun "$NAME" "${MUSTER_READY_WAIT_S:-90}" "${words[@]}" \
      --exclusive --time=5 --immediate=300 --kill-on-bad-exit=0 --chdir=/ bash -c "$LOOK" _ "$gpus" "$@" -- "${folders[@]}") ||
      said="no job becomes ready within ${MUSTER_READY_WAIT_S:-90} s"
    ! grep -q ': done$' <<<"$said" || break
  done
  grep -vE ': done$' <<<"$said" | grep -E "^[^ ]+: (shows|does not|cannot)" || true
  for name; do
    grep -qxF "$name: done" <<<"$said" ||
      echo "$name: has run nothing: $(grep -E 'error' <<<"$said" | grep -F "$name" | tail -n 1 || tail -n 1 <<<"$said")"
  done
}

# A job of two that fails for one of them may blame both; alone they tell.
validation::blame() { # partition wrong node...
  local -r partition=$1 together=$2
  local name alone=
  shift 2
  for name; do
    (($# == 1)) || alone+=$(validation::job "$partition" "$name" | sed 's/$/; /')
  done
  if [[ -n $alone ]]; then
    step::fail 1 "the job failed, and alone too: ${alone%; }"
  fi
  step::fail 1 "the job failed$( (($# == 1)) || echo ", though each node alone runs one"): $(paste -sd ';' <<<"$together")"
}

validation::run() { # sum of the configuration
  local partition wanted wrong
  local -a nodes
  partition=$(validation::partition)
  wanted=$(validation::wanted "$partition")
  ((wanted > 0)) || step::fail 78 "partition $partition has no nodes: what should run?"
  slurm::end_jobs "$NAME" 180 ||
    step::fail 75 "a job of an earlier validation does not end: $(slurm::jobs "$NAME" '%A on %N is %T' | paste -sd ';')"
  wait::until "${MUSTER_NODES_WAIT_S:-900}" validation::enough "$partition" "$wanted" ||
    step::fail 75 "there are not $wanted nodes in service: $(validation::out_of_service "$partition")"
  mapfile -t nodes < <(validation::nodes "$partition" idle | head -n "$wanted")
  if ((${#nodes[@]} == wanted)); then
    wrong=$(validation::job "$partition" "${nodes[@]}")
    [[ -z $wrong ]] || validation::blame "$partition" "$wrong" "${nodes[@]}"
    echo "a job ran on ${nodes[*]}"
  else
    echo "users' jobs run: no need for one of ours"
  fi
  echo "$1" | want::file "$MUSTER_STATE/validated" 0644
}

step::state() {
  local sum
  local -a files
  mapfile -t files < <(slurm::files)
  sum=$(service::sum "${files[@]}")
  [[ $(cat "$MUSTER_STATE/validated" 2>/dev/null) == "$sum" ]] ||
    step::differs "no job has run with this configuration" || validation::run "$sum"
}

main() { step::run "$@"; }

main "$@"
