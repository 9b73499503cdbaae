#!/usr/bin/env bash
# Makes groups and users, people's and Slurm's, with the same ids on every node. An id that differs is never changed.
#
# needs: packages
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

users::group() { # name gid
  local entry
  if ! entry=$(getent group "$1"); then
    users::free group "$2" "$1"
    step::differs "group $1: missing" || groupadd --gid "$2" "$1"
  elif [[ $(cut -d: -f3 <<<"$entry") != "$2" ]]; then
    step::fail 65 "group $1 has id $(cut -d: -f3 <<<"$entry") here, not $2: files of the other id would change hands"
  fi
}

users::free() { # passwd|group id name
  local -r entry=$(getent "$1" "$2")
  [[ -z $entry ]] || step::fail 65 "id $2, meant for $3, belongs to ${entry%%:*} here"
}

users::user() { # name uid group home shell
  local entry
  if ! entry=$(getent passwd "$1"); then
    users::free passwd "$2" "$1"
    step::differs "user $1: missing" || useradd --uid "$2" --gid "$3" --home-dir "$4" --no-create-home --shell "$5" "$1"
    return
  fi
  local _ uid gid home shell
  IFS=: read -r _ _ uid gid _ home shell <<<"$entry"
  if [[ $uid != "$2" ]]; then
    step::fail 65 "user $1 has id $uid here, not $2: files of the other id would change hands"
  fi
  if [[ $gid != "$(getent group "$3" | cut -d: -f3)" || $home != "$4" || $shell != "$5" ]]; then
    step::differs "user $1: group, home or shell" || usermod --gid "$3" --home "$4" --shell "$5" "$1"
  fi
}

users::member() { # user group
  [[ -n $2 ]] || return 0
  getent group "$2" >/dev/null || {
    step::checking || step::fail 65 "user $1: there is no group $2 here"
    return 0
  }
  if ! id -nG "$1" 2>/dev/null | tr ' ' '\n' | grep -qxF "$2"; then
    step::differs "user $1: not in group $2" || usermod --append --groups "$2" "$1"
  fi
}

# sudo refuses to work at all with a damaged file in that folder: a name can hold nothing that could damage it.
users::admins() {
  local i
  local -a admins=()
  for i in "${!C_USERS_USERS_NAME[@]}"; do
    [[ -z ${C_USERS_USERS_ADMIN[i]} ]] || admins+=("${C_USERS_USERS_NAME[i]}")
  done
  if ((${#admins[@]} == 0)); then
    want::absent /etc/sudoers.d/muster
    return
  fi
  want::packages sudo
  printf '%s ALL=(ALL:ALL) NOPASSWD: ALL\n' "${admins[@]}" | want::file /etc/sudoers.d/muster 0440
}

step::state() {
  local i group
  users::group "$C_SLURM_USER" "$C_SLURM_UID"
  users::user "$C_SLURM_USER" "$C_SLURM_UID" "$C_SLURM_USER" /nonexistent /usr/sbin/nologin
  for i in "${!C_USERS_GROUPS_NAME[@]}"; do
    users::group "${C_USERS_GROUPS_NAME[i]}" "${C_USERS_GROUPS_GID[i]}"
  done
  for i in "${!C_USERS_USERS_NAME[@]}"; do
    users::user "${C_USERS_USERS_NAME[i]}" "${C_USERS_USERS_UID[i]}" "${C_USERS_USERS_GROUP[i]}" \
      "$C_USERS_HOME/${C_USERS_USERS_NAME[i]}" "${C_USERS_USERS_SHELL[i]}"
    while read -r group; do
      users::member "${C_USERS_USERS_NAME[i]}" "$group"
    done <<<"${C_USERS_USERS_GROUPS[i]}"
  done
  users::admins
}

main() { step::run "$@"; }

main "$@"
