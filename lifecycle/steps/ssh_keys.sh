#!/usr/bin/env bash
# Gives each user a key that opens every node, where homes are shared. Only the first head node writes it.
#
# needs: homes packages
# when: users.users node.home_shared node.primary
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

# As that user, and at once: a key without its line in authorized_keys is made good too.
# shellcheck disable=SC2016 # expands inside
readonly KEY='set -euo pipefail; umask 077; cd "$1"; mkdir -p .ssh
[[ -s .ssh/id_ed25519 ]] || ssh-keygen -q -t ed25519 -N "" -C "$2" -f .ssh/id_ed25519 <<<y
[[ -s .ssh/id_ed25519.pub ]] || ssh-keygen -y -f .ssh/id_ed25519 >.ssh/id_ed25519.pub
grep -qxFf .ssh/id_ed25519.pub .ssh/authorized_keys 2>/dev/null || cat .ssh/id_ed25519.pub >>.ssh/authorized_keys'

ssh_keys::is_there() { # name home
  # shellcheck disable=SC2016 # expands inside
  runuser -u "$1" -- bash -c 'cd "$1/.ssh" && [[ -s id_ed25519 && -s id_ed25519.pub ]] &&
    grep -qxFf id_ed25519.pub authorized_keys' _ "$2" 2>/dev/null
}

step::state() {
  local name
  want::packages openssh-client
  for name in "${C_USERS_USERS_NAME[@]}"; do
    ssh_keys::is_there "$name" "$C_USERS_HOME/$name" ||
      step::differs "$name: no key between nodes" ||
      runuser -u "$name" -- bash -c "$KEY" _ "$C_USERS_HOME/$name" "$name@$C_NAME"
  done
}

main() { step::run "$@"; }

main "$@"
