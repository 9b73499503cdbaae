#!/usr/bin/env bash
# Runs slurmdbd, which writes accounting into the database, before any slurmctld asks for it.
#
# needs: packages hosts munge users database
# roles: head
# when: accounting.database!=off node.accounting platform=plain
# limit_s: 900
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly DBD_PORT=6819

slurmdbd::conf() { # the password as the file takes it
  local -r days=${C_ACCOUNTING_PURGE_AFTER_DAYS}days
  cat <<CONF
# Written by muster from cluster.yaml; it has a password, so only $C_SLURM_USER may read it.
AuthType=auth/munge
DbdHost=$N_NAME
DbdPort=$DBD_PORT
SlurmUser=$C_SLURM_USER
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=${C_ACCOUNTING_HOST:-localhost}
StoragePort=$C_ACCOUNTING_PORT
StorageLoc=$C_ACCOUNTING_NAME
StorageUser=$C_ACCOUNTING_USER
StoragePass=$1
# Without these the database grows until sacct takes minutes.
PurgeJobAfter=$days
PurgeStepAfter=$days
PurgeEventAfter=$days
PurgeSuspendAfter=$days
CONF
}

slurmdbd::answers() {
  timeout 5 bash -c ": <>/dev/tcp/127.0.0.1/$DBD_PORT" 2>/dev/null
}

slurmdbd::why() {
  grep -E 'error|fatal' /var/log/slurm/slurmdbd.log 2>/dev/null | tail -1
}

step::state() {
  local before password
  want::packages slurmdbd
  want::folder /var/log/slurm 0755 "$C_SLURM_USER:$C_SLURM_USER"
  want::folder "$C_SLURM_CONFIG_DIR" 0755
  if [[ $C_ACCOUNTING_DATABASE == external ]]; then
    if secret::stale accounting "$C_ACCOUNTING_PASSWORD_FILE"; then
      step::differs "the password has changed" || true
    fi
    step::checking || secret::fetch accounting "$C_ACCOUNTING_PASSWORD_FILE" "${C_ACCOUNTING_PASSWORD_COMMAND[@]}"
  fi
  [[ -s $MUSTER_SECRETS/accounting ]] || {
    step::differs "the database's password is not known yet" || step::fail 75 "there is no password of the database"
    return 0
  }
  password=$(secret::for_slurm accounting)
  before=$(cksum "$C_SLURM_CONFIG_DIR/slurmdbd.conf" 2>/dev/null) || true
  slurmdbd::conf "$password" | want::file "$C_SLURM_CONFIG_DIR/slurmdbd.conf" 0600 "$C_SLURM_USER:$C_SLURM_USER"
  step::checking && ! command -v slurmdbd >/dev/null && return 0
  if ! step::checking && [[ $before != "$(cksum "$C_SLURM_CONFIG_DIR/slurmdbd.conf")" ]]; then
    service::restart slurmdbd slurmdbd slurmdbd
  fi
  want::service slurmdbd slurmdbd slurmdbd
  slurmdbd::answers || step::differs "slurmdbd does not answer" || wait::until 120 slurmdbd::answers ||
    step::fail 75 "slurmdbd does not answer after 120 s: $(slurmdbd::why)"
}

main() { step::run "$@"; }

main "$@"
