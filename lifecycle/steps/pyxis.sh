#!/usr/bin/env bash
# Builds Pyxis, which gives srun its --container-image, for the Slurm that is here, and proves that srun takes it.
#
# needs: packages mounts enroot
# when: containers.pyxis
# limit_s: 1800
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly KNOWN_VERSION=0.24.0 SOURCES=https://github.com/NVIDIA/pyxis/archive/refs/tags

# No distribution has it. Prints the version.
pyxis::sources() { # folder
  local -r version=${C_CONTAINERS_PYXIS_VERSION:-$KNOWN_VERSION}
  local archive
  archive=$(fetch::file "pyxis-$version.tar.gz" "$SOURCES/v$version.tar.gz")
  tar -xzf "$archive" -C "$1" --strip-components=1 || step::fail 65 "$archive cannot be unpacked: remove it"
  echo "$version"
}

step::state() {
  want::plugin spank_pyxis --container-image "${C_CONTAINERS_PYXIS_VERSION:-any}" pyxis::sources
}

main() { step::run "$@"; }

main "$@"
