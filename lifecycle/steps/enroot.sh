#!/usr/bin/env bash
# Installs Enroot, which runs images without root, with settings for a cluster and its folders on the node's own disk.
#
# needs: packages mounts scratch
# when: containers.enroot
# limit_s: 1800
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly KNOWN_VERSION=4.1.2 RELEASES=https://github.com/NVIDIA/enroot/releases/download DISK=/var/lib/enroot

enroot::version() {
  timeout 20 enroot version 2>/dev/null || echo none
}

# One that somebody has installed stays, unless cluster.yaml names another.
enroot::is_right() {
  local -r version=$(enroot::version)
  [[ $version != none && $version == "${C_CONTAINERS_ENROOT_VERSION:-$version}" ]]
}

# No distribution has it. enroot+caps lets users unpack images with the files of other users in them.
enroot::install() {
  local -r version=${C_CONTAINERS_ENROOT_VERSION:-$KNOWN_VERSION} arch=$(dpkg --print-architecture)
  local name file
  local -a files=()
  for name in enroot enroot+caps; do
    file=${name}_$version-1_$arch.deb
    file=$(fetch::file "$file" "$RELEASES/v$version/$file")
    files+=("$file")
  done
  packages::install "${files[@]}"
}

# Enroot's hook calls it on each node with GPUs; without it a container starts and sees none.
enroot::gpu_tools() {
  ((${N_GPUS:-0} > 0)) || return 0
  command -v nvidia-container-cli >/dev/null || step::differs "nvidia-container-cli: missing" ||
    packages::need libnvidia-container-tools "containers would see no GPU. Add NVIDIA's source for the container toolkit"
}

enroot::settings() { # folder of ours
  local file
  want::files "$1/enroot.conf.d" /etc/enroot/enroot.conf.d 0644
  want::files "$1/environ.d/fabric" /etc/enroot/environ.d/fabric 0644
  want::files "$1/hooks.d" /etc/enroot/hooks.d 0755
  for file in "$1"/mounts.d/*; do
    sed "s#^/scratch /scratch #$C_SCRATCH_PATH $C_SCRATCH_PATH #" "$file" | want::file "/etc/enroot/mounts.d/${file##*/}" 0644
  done
}

# Where a node has no disk of its own, it is the root disk.
enroot::folders() {
  local kind elsewhere
  if [[ $N_ROLE == compute ]]; then
    want::folder "$C_SCRATCH_PATH/enroot" 0755
    enroot::link "$DISK" "$C_SCRATCH_PATH/enroot"
    enroot::at_boot
  else
    want::folder "$DISK" 0755
  fi
  for kind in cache data temp; do
    elsewhere=C_CONTAINERS_${kind^^}
    if [[ -n ${!elsewhere:-} ]]; then
      want::folder "${!elsewhere}" 1777
      enroot::link "$DISK/$kind" "${!elsewhere}"
    else
      want::folder "$DISK/$kind" 1777
    fi
  done
  want::folder "$DISK/pyxis" 0755 # the users' folders in it are made by Pyxis
  want::folder /run/enroot 1777
  want::file /etc/tmpfiles.d/muster-enroot.conf 0644 <<'CONF'
# Written by muster. In memory, so each boot makes it anew; users make their own folders in it.
d /run/enroot 1777 root root
CONF
}

# A cloud's own disk is empty after a stop, and Pyxis wants its folder when slurmd starts.
enroot::at_boot() {
  want::file /etc/systemd/system/slurmd.service.d/muster_enroot.conf 0644 <<CONF
# Written by muster.
[Unit]
RequiresMountsFor=$C_SCRATCH_PATH
[Service]
ExecStartPre=/usr/bin/install -d -m 0755 $C_SCRATCH_PATH/enroot $C_SCRATCH_PATH/enroot/pyxis
CONF
}

enroot::link() { # path target
  if [[ -d $1 && ! -L $1 ]]; then
    rmdir "$1" 2>/dev/null || step::fail 65 "$1 holds something, and belongs to $2: move it there"
  fi
  want::link "$1" "$2"
}

# Ubuntu from 23.10 on lets only programs with a profile make the namespaces that Enroot lives in; a kernel that is locked
# down nobody.
enroot::namespaces() {
  local -r restricted=kernel.apparmor_restrict_unprivileged_userns clone=kernel.unprivileged_userns_clone
  local -a wanted=()
  if enroot::has_key $restricted && [[ ! -e /etc/apparmor.d/enroot && ! -e /usr/share/enroot/apparmor.profile ]]; then
    wanted+=("$restricted=0")
  fi
  if enroot::has_key $clone; then wanted+=("$clone=1"); fi
  if enroot::has_key user.max_user_namespaces && (($(sysctl -n user.max_user_namespaces) < 2)); then
    step::fail 65 "user.max_user_namespaces is $(sysctl -n user.max_user_namespaces) here: Enroot needs user namespaces"
  fi
  sysctl::want /etc/sysctl.d/91-muster-enroot.conf "${wanted[@]}"
}

enroot::has_key() {
  [[ -e /proc/sys/${1//.//} ]]
}

# As Pyxis calls it after a job: with nothing in its environment. What fails there drains the node.
enroot::works() {
  (cd / && env -i PATH=/usr/local/bin:/usr/bin:/bin timeout 60 enroot list) 2>&1
}

step::state() {
  local ours why
  enroot::is_right || step::differs "enroot: version $(enroot::version)" || enroot::install
  enroot::gpu_tools
  ours=$(assets::folder containers/enroot)
  enroot::settings "$ours"
  slurm::around_jobs "$ours/prolog.d"
  enroot::folders
  enroot::namespaces
  if command -v enroot >/dev/null; then
    why=$(enroot::works) || step::differs "enroot list fails" ||
      step::fail 1 "enroot does not work without an environment: ${why##*$'\n'}"
  fi
}

main() { step::run "$@"; }

main "$@"
