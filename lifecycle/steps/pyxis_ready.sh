#!/usr/bin/env bash
# Asks srun on this node, with the files that it really reads, whether it knows --container-image.
#
# needs: pyxis slurm_conf slurmctld slurmd
# when: containers.pyxis
# limit_s: 300
# tries: 1
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

pyxis_ready::known() {
  timeout 60 srun --help 2>/dev/null | grep -q -- --container-image
}

# A slurmd that took its files before the plugin was in them gets new ones within moments of 'scontrol reconfigure'.
step::state() {
  pyxis_ready::known || step::differs "srun does not know --container-image" || wait::until "${MUSTER_READY_WAIT_S:-120}" pyxis_ready::known ||
    step::fail 75 "srun does not know --container-image: is spank_pyxis.so in plugstack.conf? (scontrol reconfigure)"
}

main() { step::run "$@"; }

main "$@"
