#!/usr/bin/env bash
# Debian packages, on a machine whose own services also want apt: waits for locks and says who holds them.
#
# Daemons in packages are not started when they are unpacked: they have no configuration yet. Their steps start them.
set -euo pipefail

readonly PACKAGES_LOCKS="/var/lib/dpkg/lock-frontend /var/lib/dpkg/lock /var/lib/apt/lists/lock /var/cache/apt/archives/lock"
readonly PACKAGES_POLICY=/usr/sbin/policy-rc.d

# want::packages NAME[=VERSION]...
want::packages() {
  local name
  local -a missing=()
  for name; do
    packages::installed "$name" || missing+=("$name")
  done
  if ((${#missing[@]} > 0)); then
    step::differs "packages missing: ${missing[*]}" || packages::install "${missing[@]}"
  fi
}

# want::program PROGRAM PACKAGE: one that the site has put there without a package counts too.
want::program() {
  local -r state=$(dpkg-query -W -f '${db:Status-Status}' "$2" 2>/dev/null)
  if [[ $state == @(|not-installed|config-files) ]] && command -v "$1" >/dev/null; then return 0; fi
  want::packages "$2"
}

packages::installed() {
  local -r found=$(dpkg-query -W -f '${db:Status-Status} ${Version}' "${1%%=*}" 2>/dev/null)
  [[ $1 == *=* && $found == "installed ${1#*=}" || $1 != *=* && $found == "installed "* ]]
}

packages::install() {
  command -v apt-get >/dev/null || step::fail 69 "this system has no apt-get: muster sets up Debian and Ubuntu only"
  packages::wait_for_locks
  packages::policy_on
  # Somebody was killed in the middle of it, perhaps we.
  [[ -z $(dpkg --audit 2>&1) ]] || dpkg --force-confold --configure -a
  # With the lists that are there; only if that fails with new ones.
  packages::apt install "$@" || {
    packages::apt_update
    packages::apt install "$@"
  }
  packages::policy_off
}

packages::apt() {
  NEEDRESTART_SUSPEND=1 apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Dpkg::Options::=--force-confold \
    --no-install-recommends "$@" </dev/null 9>&-
}

packages::apt_update() {
  packages::wait_for_locks
  packages::apt update || step::fail 75 "the lists of packages cannot be fetched"
}

# packages::need PACKAGE WHY: installs one that not every distribution has.
packages::need() {
  packages::known "$1" || packages::apt_update
  packages::known "$1" || step::fail 69 "no source of packages here has $1: $2"
  packages::install "$1"
}

packages::known() {
  apt-cache show --no-all-versions "$1" >/dev/null 2>&1
}

# apt can wait for dpkg's lock, but not for that of its lists; dpkg waits for none.
packages::wait_for_locks() {
  local -r end=$((SECONDS + ${MUSTER_LOCK_WAIT_S:-300}))
  local lock pid said=
  for lock in $PACKAGES_LOCKS; do
    while pid=$(packages::holder "$lock"); do
      [[ $said == "$pid" ]] || echo "waiting for process $pid ($(packages::command "$pid")), which holds $lock"
      said=$pid
      ((SECONDS < end)) || step::fail 75 "process $pid ($(packages::command "$pid")) still holds $lock"
      sleep 1
    done
  done
}

# The process that holds a lock on a file; fails when none does.
packages::holder() {
  local inode
  inode=$(stat -c %i "$1" 2>/dev/null) || return 1
  awk -v inode="$inode" '$2 == "POSIX" { n = split($6, at, ":"); if (at[n] == inode) { print $5; found = 1; exit } }
    END { exit !found }' /proc/locks
}

packages::command() {
  tr -s '\0\n\t ' ' ' <"/proc/$1/cmdline" 2>/dev/null | cut -c 1-60 || true
}

# One that somebody else put there says what he wants, and stays.
packages::policy_on() {
  [[ ! -e $PACKAGES_POLICY ]] || return 0
  trap packages::policy_off EXIT
  printf '#!/bin/sh\n# muster: no daemon starts while it is installed\nexit 101\n' >"$PACKAGES_POLICY"
  chmod +x "$PACKAGES_POLICY"
}

packages::policy_off() {
  if packages::policy_is_ours; then rm -f "$PACKAGES_POLICY"; fi
}

packages::policy_is_ours() {
  grep -qs '^# muster:' "$PACKAGES_POLICY"
}

main() {
  echo "this file is read by steps, not run" >&2
  exit 64
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
