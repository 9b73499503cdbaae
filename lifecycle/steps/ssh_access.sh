#!/usr/bin/env bash
# Lets people into a compute node over ssh only while a job of theirs runs there; root and administrators at any time.
#
# needs: packages users
# roles: compute
# when: platform=plain
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly PAM=/etc/pam.d
readonly BACKUP=/var/backups/pam.d-sshd.before-muster
readonly ADMINS=/etc/security/muster_admins
readonly SSHD=/etc/ssh/sshd_config.d/muster.conf

# May this user log in, as far as PAM's account part is concerned? Asked of a folder of PAM's files, so that one can ask
# before they are those of sshd. A process for each: libslurm ends it where its configuration is missing.
readonly MAY_LOG_IN='
import ctypes, sys
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
def answers_nothing(*_):
    return 19
class Conversation(ctypes.Structure):
    _fields_ = [("function", type(answers_nothing)), ("data", ctypes.c_void_p)]
pam, handle = ctypes.CDLL("libpam.so.0"), ctypes.c_void_p()
conversation, folder, user = Conversation(answers_nothing, None), *map(str.encode, sys.argv[1:])
began = pam.pam_start_confdir(b"sshd", user, ctypes.byref(conversation), folder, ctypes.byref(handle))
print("asked")
sys.exit(began != 0 or pam.pam_acct_mgmt(handle, 0) != 0)'

# Adopting needs the cgroups that jobs are kept in. Without them a session is let in, and not ended with the job.
ssh_access::module() {
  if [[ -n $C_SLURM_CGROUP ]]; then echo pam_slurm_adopt; else echo pam_slurm; fi
}

# Of Debian's packages, unless Slurm was built and installed together with its own.
ssh_access::packages() {
  local -r module=$(ssh_access::module)
  local -a names=(openssh-server)
  compgen -G "/lib*/security/$module.so" >/dev/null || compgen -G "/lib/*/security/$module.so" >/dev/null ||
    names+=("lib${module//_/-}")
  want::packages "${names[@]}"
}

ssh_access::admins() {
  local i
  echo root
  for i in "${!C_USERS_USERS_NAME[@]}"; do
    [[ -z ${C_USERS_USERS_ADMIN[i]} ]] || echo "${C_USERS_USERS_NAME[i]}"
  done
}

# At the end of the file, after all else that decides about accounts. Who is exempt leaves before Slurm is asked, so that
# no fault of Slurm, and no module that is missing, shuts an administrator out.
ssh_access::lines() {
  local options=
  [[ -z $C_SLURM_CGROUP ]] || options=' action_adopt_failure=deny action_generic_failure=deny'
  cat <<CONF
account sufficient pam_succeed_if.so quiet uid = 0
account sufficient pam_listfile.so quiet item=user sense=allow onerr=fail file=$ADMINS
account sufficient pam_succeed_if.so quiet user ingroup sudo:admin:wheel
account required $(ssh_access::module).so$options
CONF
}

ssh_access::asked() { # folder user: 0 if so; prints nothing if PAM could not be asked
  timeout 60 python3 -c "$MAY_LOG_IN" "$1" "$2" 2>/dev/null
}

# With a copy of PAM's folder: all who must be able to come in can, and somebody without a job cannot. Only then is the
# file of sshd touched.
ssh_access::rehearse() {
  local trial user
  trial=$(mktemp -d "$MUSTER_STATE/pam.XXXXXX")
  # shellcheck disable=SC2064 # the folder is known now
  trap "rm -rf '$trial'" EXIT
  cp -aL "$PAM/." "$trial"
  ssh_access::lines | STEP_VERB=apply DIFFERENCES=/dev/null want::block "$trial/sshd" >/dev/null
  [[ $(ssh_access::asked "$trial" root || true) == asked ]] || step::fail 69 "PAM cannot be asked here: it takes libpam 1.4"
  for user in $(ssh_access::admins) ${SUDO_USER:-}; do
    ssh_access::asked "$trial" "$user" >/dev/null || step::fail 65 \
      "$user could not log in over ssh any more, so nothing was changed: make that user an admin in cluster.yaml, or a member of sudo"
  done
  ! ssh_access::asked "$trial" nobody >/dev/null ||
    step::fail 65 "somebody without a job could still log in, so nothing was changed: a line of $PAM/sshd ends it before ours"
  rm -rf "$trial"
}

ssh_access::block_is_right() {
  local -r first="# muster create, step ssh_access: from here"
  [[ $(sed -n "/^$first\$/,/: to here\$/p" "$PAM/sshd" 2>/dev/null | sed '1d;$d') == "$(ssh_access::lines)" ]]
}

ssh_access::close() {
  ssh_access::packages
  ssh_access::admins | want::file "$ADMINS" 0644
  ssh_access::sshd
  if ! step::checking && ! ssh_access::block_is_right; then
    ssh_access::rehearse
    [[ -e $BACKUP ]] || cp -a "$PAM/sshd" "$BACKUP"
  fi
  ssh_access::lines | want::block "$PAM/sshd"
  ssh_access::logind
  ssh_access::daemon
}

# pam_systemd would take a session out of the job again that it was adopted into.
ssh_access::logind() {
  if [[ -n $C_SLURM_CGROUP ]] && service::systemd && [[ $(systemctl is-enabled systemd-logind 2>&1) != masked ]]; then
    step::differs "systemd-logind: would move sessions out of their jobs" || systemctl mask --quiet --now systemd-logind
  fi
}

ssh_access::sshd() {
  local again=
  grep -qsx 'UsePAM yes' "$SSHD" || again=yes
  # The first word of a kind counts, and Debian's sshd_config begins with this folder.
  want::file "$SSHD" 0644 <<'CONF'
# Written by muster. Without PAM nobody asks whether a job runs.
UsePAM yes
CONF
  if ! step::checking; then
    install -d -m 0755 /run/sshd
    grep -ix 'usepam yes' <<<"$(sshd -T)" >/dev/null ||
      step::fail 65 "sshd does not use PAM: /etc/ssh/sshd_config says so before it includes sshd_config.d"
    [[ -z $again ]] || ssh_access::read_again
  fi
}

ssh_access::read_again() {
  if service::systemd; then
    systemctl try-reload-or-restart ssh
  elif [[ -s /run/sshd.pid ]]; then
    kill -HUP "$(</run/sshd.pid)" 2>/dev/null || true # sessions stay
  fi
}

# Last: who comes in meets all of it.
ssh_access::daemon() {
  if service::systemd && systemctl is-active --quiet ssh.socket; then return; fi
  want::service ssh sshd /usr/sbin/sshd
}

# Everybody again, as before.
ssh_access::open() {
  [[ -e $PAM/sshd ]] || return 0
  if grep -q '^# muster create, step ssh_access: from here$' "$PAM/sshd"; then
    want::block "$PAM/sshd" </dev/null
    if ! step::checking && service::systemd; then systemctl unmask --quiet systemd-logind; fi
  fi
  want::absent "$ADMINS"
  want::absent "$SSHD"
}

step::state() {
  if [[ -n $C_SLURM_SSH_WITH_JOB_ONLY ]]; then ssh_access::close; else ssh_access::open; fi
}

main() { step::run "$@"; }

main "$@"
