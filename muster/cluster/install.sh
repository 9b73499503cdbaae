#!/usr/bin/env bash
# Installs Debian packages without starting the daemons in them: install.sh PACKAGE...
# policy-rc.d is how Debian says "do not start services"; what was there before comes back.
set -euo pipefail

readonly POLICY=/usr/sbin/policy-rc.d
readonly SAVED=$POLICY.muster-saved

install::forbid_start() {
  [[ ! -e $POLICY && ! -L $POLICY ]] || mv "$POLICY" "$SAVED"
  trap install::restore EXIT
  printf '#!/bin/sh\nexit 101\n' >"$POLICY"
  chmod 755 "$POLICY"
}

install::restore() {
  rm -f "$POLICY"
  [[ ! -e $SAVED && ! -L $SAVED ]] || mv "$SAVED" "$POLICY"
}

main() {
  local -ra options=(-o DPkg::Lock::Timeout=120 -o Acquire::Retries=2)
  trap '' HUP INT TERM # the caller may leave; a half-installed system may not stay
  export DEBIAN_FRONTEND=noninteractive
  install::forbid_start
  apt-get -q "${options[@]}" update
  apt-get -qy "${options[@]}" install --no-install-recommends "$@"
}

main "$@"
