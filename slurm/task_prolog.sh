#!/bin/bash
# Slurm's TaskProlog: gives every task the variables of the cluster, such as those of NCCL. Slurm reads what it prints.
#
# They are lines NAME=value of environment.d/*.env beside this file. The first file that has a name wins; a variable that
# the job has set itself wins over all. Never -e: a variable that is missing must not end a job.
set -uo pipefail

main() {
  local file line
  for file in "${BASH_SOURCE[0]%/*}"/environment.d/*.env; do
    [[ -r $file ]] || continue
    while IFS= read -r line || [[ -n $line ]]; do
      if [[ $line =~ ^([A-Za-z_][A-Za-z0-9_]*)=(.*)$ && -z ${!BASH_REMATCH[1]+is set} ]]; then
        echo "export $line"
        export "${line?}"
      fi
    done <"$file"
  done
}

main "$@"
exit 0
