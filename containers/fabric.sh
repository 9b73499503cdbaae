#!/usr/bin/env bash
# Runs while an image is built: installs what EFA needs, and proves that NCCL will find it.
#
# Without the proof a job falls back to TCP sockets, in silence, at a tenth of the speed. The versions come from
# images.yaml; an empty EFA_INSTALLER_VERSION is an image for machines without EFA.
set -euo pipefail

readonly INSTALLED=${EFA_INSTALLED:-/opt/amazon/efa_installed_packages} # written by the installer; a test has another

fabric::efa() {
  local -r archive="aws-efa-installer-$EFA_INSTALLER_VERSION.tar.gz"
  curl -fsSL --retry 3 "https://efa-installer.amazonaws.com/$archive" | tar -xz
  # The kernel module and the limits belong to the host.
  (cd aws-efa-installer && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify)
  printf '%s\n' /opt/amazon/efa/lib /opt/amazon/ofi-nccl/lib /opt/amazon/ofi-nccl/lib64 \
    >/etc/ld.so.conf.d/000_efa.conf
  ldconfig
}

fabric::gdrcopy() {
  curl -fsSL --retry 3 "https://github.com/NVIDIA/gdrcopy/archive/refs/tags/v$GDRCOPY_VERSION.tar.gz" | tar -xz
  make -C "gdrcopy-$GDRCOPY_VERSION" prefix=/usr/local lib lib_install
  ldconfig
}

# Fails with one line unless NCCL finds the plugin, the plugin its libraries, and all of them are the right ones.
fabric::prove() {
  local plugin missing
  plugin=$(ldconfig -p | awk '/libnccl-net[^ ]*\.so/ && /\/opt\/amazon\// && !found++ { print $NF }')
  if [[ -z $plugin ]]; then
    echo "fabric.sh: no libnccl-net*.so of /opt/amazon is in ldconfig -p. Fix: another efa_installer" >&2
    return 1
  fi
  missing=$(ldd "$plugin" | awk '/not found/ && $1 !~ /^libcuda\.so/ { print $1 }' | xargs)
  if [[ -n $missing ]]; then
    echo "fabric.sh: $plugin does not find $missing. Fix: a base image that has it" >&2
    return 1
  fi
  if ! grep -Eq "nccl-ofi[^ ]*[_-]$AWS_OFI_NCCL_VERSION" "$INSTALLED"; then
    echo "fabric.sh: aws-ofi-nccl is not $AWS_OFI_NCCL_VERSION. Fix: correct it in images.yaml" >&2
    return 1
  fi
}

main() {
  if [[ -z ${EFA_INSTALLER_VERSION:-} ]]; then
    echo "fabric.sh: no EFA in this image"
    return
  fi
  local -r folder=$(mktemp -d)
  cd "$folder"
  apt-get update
  fabric::efa
  [[ -z ${GDRCOPY_VERSION:-} ]] || fabric::gdrcopy
  fabric::prove
  cd /
  rm -rf "$folder" /var/lib/apt/lists/*
}

main "$@"
