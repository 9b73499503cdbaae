#!/usr/bin/env bash
# Makes a home for each user, owned by that user, with the public keys that may log in.
#
# needs: users mounts
# when: users.users
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

# On a shared disk all nodes come here at the same time. A folder is made elsewhere and moved into place, so that nobody
# ever sees half a home; who comes second finds it there.
homes::make() { # home owner
  local part
  part=$(mktemp -d "$C_USERS_HOME/.new.XXXXXX")
  cp -a /etc/skel/. "$part"
  chown -R "$2" "$part"
  chmod 0700 "$part"
  mv -T --no-clobber "$part" "$1" 2>/dev/null || true
  rm -rf "$part"
  [[ -d $1 ]] || step::fail 74 "$1 cannot be made"
}

homes::one() { # index
  local -r name=${C_USERS_USERS_NAME[$1]} keys=${C_USERS_USERS_SSH_KEYS[$1]}
  local -r home=$C_USERS_HOME/$name owner=$name:${C_USERS_USERS_GROUP[$1]}
  if [[ ! -d $home ]]; then
    step::differs "$home: missing" || homes::make "$home" "$owner"
  fi
  step::checking && [[ ! -d $home ]] && return 0
  if [[ $(stat -c %U:%G "$home") != "$owner" ]]; then
    step::differs "$home: belongs to $(stat -c %U:%G "$home")" || chown "$owner" "$home"
  fi
  [[ -z $keys ]] || homes::keys "$name" "$home" "$keys"
}

# As that user: a link in a home must lead root nowhere. What users added themselves stays. A user who made that
# impossible is told of here, and stops nobody's cluster.
homes::keys() { # name home keys
  local missing
  # shellcheck disable=SC2016 # expands inside
  if ! missing=$(runuser -u "$1" -- bash -c 'set -e; f=$1/.ssh/authorized_keys; if [[ -e $f ]]; then
      [[ -w $f ]]; grep -vxFf "$f" || true
    else [[ ! -e $1/.ssh || -w $1/.ssh ]]; cat; fi' _ "$2" <<<"$3"); then
    echo "$1 cannot write $2/.ssh/authorized_keys: no key of cluster.yaml is there"
    return
  fi
  if [[ -n $missing ]]; then
    # shellcheck disable=SC2016 # expands inside
    step::differs "$2/.ssh/authorized_keys: keys missing" ||
      runuser -u "$1" -- bash -c 'umask 077; mkdir -p "$1/.ssh" && cat >>"$1/.ssh/authorized_keys"' _ "$2" <<<"$missing"
  fi
}

step::state() {
  local i
  [[ -d $C_USERS_HOME ]] || step::differs "$C_USERS_HOME: missing" || mkdir -p "$C_USERS_HOME"
  for i in "${!C_USERS_USERS_NAME[@]}"; do
    homes::one "$i"
  done
}

main() { step::run "$@"; }

main "$@"
