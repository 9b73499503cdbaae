#!/usr/bin/env bash
# Builds the plugin for srun --auto-resume=1, for the Slurm that is here, and proves that srun takes it.
#
# needs: packages
# when: slurm.auto_resume platform!=hyperpod
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

# The version is what the sources are.
auto_resume::sources() { # folder
  cp -r "$SOURCES/." "$1"
  auto_resume::version
}

auto_resume::version() {
  cat "$SOURCES"/{Makefile,*.c} | sha256sum | cut -c 1-12
}

step::state() {
  SOURCES=$(assets::folder slurm/spank)
  want::plugin auto_resume --auto-resume "$(auto_resume::version)" auto_resume::sources
}

main() { step::run "$@"; }

main "$@"
