#!/usr/bin/env bash
# A hook of Enroot: on a node without NVIDIA's GPUs an image that was made for them starts all the same.
#
# Such an image says NVIDIA_VISIBLE_DEVICES=all, NVIDIA's own hook, 98-nvidia.sh, then looks for a driver, and the
# container does not start. Where a GPU is there without its driver nothing is changed: that failure is meant to be seen.
set -euo pipefail

readonly ROOT=${MUSTER_NODE_ROOT:-} # tests have another /sys

no_gpu::has_gpu() {
  local device
  for device in "$ROOT"/sys/bus/pci/devices/*; do
    # Class 03: display controllers, those without a display (0302) too.
    if [[ -r $device/vendor && $(<"$device/vendor") == 0x10de && $(<"$device/class") == 0x03* ]]; then
      return 0
    fi
  done
  return 1
}

main() {
  no_gpu::has_gpu || echo NVIDIA_VISIBLE_DEVICES=void >>"$ENROOT_ENVIRON" # the last line counts
}

main "$@"
