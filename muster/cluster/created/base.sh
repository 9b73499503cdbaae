#!/usr/bin/env bash
# Makes the machine image of created clusters: base.sh FOLDER INSTALL_SCRIPT PACKAGE...
#
# What the packages change below /etc, /usr and /var of this machine is kept in FOLDER; the machine itself stays as it is.
# What makes this machine a node of something (keys, Slurm's files, mounts) is taken out: an image has none of it.
set -euo pipefail

base::mount() { # folder
  local -r root=$1/root
  local part
  mkdir -p "$root"/{proc,dev,run,tmp,root} "$1/work"
  for part in bin sbin lib lib32 lib64 libx32 etc usr var; do
    if [[ -L /$part ]]; then
      ln -s "$(readlink "/$part")" "$root/$part"
    elif [[ -d /$part ]]; then
      mkdir -p "$1/$part" "$1/work/$part" "$root/$part"
      mount -t overlay overlay -o "lowerdir=/$part,upperdir=$1/$part,workdir=$1/work/$part" "$root/$part"
    fi
  done
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs run "$root/run"
  mount -t tmpfs -o mode=1777 tmp "$root/tmp"
}

base::names() { # root: a name server is needed while packages are fetched
  local names
  names=$(cat /etc/resolv.conf 2>/dev/null) || true
  rm -f "$1/etc/resolv.conf"
  printf '%s\n' "$names" >"$1/etc/resolv.conf"
}

base::missing() { # root package...
  local name
  # shellcheck disable=SC2016 # dpkg-query reads it
  for name in "${@:2}"; do
    [[ $(chroot "$1" dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) == installed ]] || echo "$name"
  done
}

base::forget() { # root
  rm -rf "$1"/etc/munge/munge.key "$1"/etc/ssh/ssh_host_* "$1"/etc/slurm "$1"/etc/muster "$1"/var/lib/muster \
    "$1"/var/log/muster "$1"/var/log/slurm "$1"/var/spool/slurm* "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/cloud
  : >"$1/etc/fstab"
  : >"$1/etc/resolv.conf" # machines of this cloud reach no name server: they ask at once, and in vain
}

main() {
  local -r folder=$1 root=$1/root
  local -a missing
  base::mount "$folder"
  mapfile -t missing < <(base::missing "$root" "${@:3}")
  if ((${#missing[@]} > 0)); then
    base::names "$root"
    chroot "$root" bash -c "$(<"$2")" install "${missing[@]}"
  fi
  base::forget "$root"
}

main "$@"
