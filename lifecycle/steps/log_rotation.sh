#!/usr/bin/env bash
# Has logrotate keep the logs of Slurm and muster small, and makes sure that the daemons then write to the new file.
#
# needs: packages slurmd slurmdbd slurmctld
# optional: jobs run until the disk is full, in some months
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly FOLDER=/etc/logrotate.d
readonly OURS='# Written by muster. Take this line away, and the file is yours.'

# logrotate passes over logs in a folder that a group may write, unless it is told whose it is.
log_rotation::su() { # folder
  local -r writable=$(find "$1" -maxdepth 0 \( -perm /0002 -o -perm /0020 ! -gid 0 \) -printf 'su %u %g' 2>/dev/null)
  [[ -z $writable ]] || echo "  $writable"
}

# Debian's own file has slurmd read its files again, by a script that gives up where slurm.conf comes from slurmctld: the
# daemon would write on into the file that was taken away, which fills the disk unseen. SIGUSR2 only opens the log anew.
log_rotation::slurm() { # daemon
  cat <<CONF
$OURS
/var/log/slurm/$1.log {
$(log_rotation::su /var/log/slurm)
  weekly
  maxsize 100M
  rotate 8
  compress
  delaycompress
  missingok
  notifempty
  nocreate
  postrotate
    pkill -USR2 -x --ns \$\$ --nslist pid $1 || true
  endscript
}
CONF
}

# Who appends to one of the first opens it for each line. The others are daemons that do not know of it, without systemd.
log_rotation::muster() {
  cat <<CONF
$OURS
/var/log/muster/*.jsonl /var/log/muster/create/*.log {
$(log_rotation::su /var/log/muster)
  weekly
  maxsize 20M
  rotate 8
  compress
  missingok
  notifempty
  nocreate
}
/var/log/docker.log /var/log/dcgm-exporter.log {
$(log_rotation::su /var/log)
  weekly
  maxsize 100M
  rotate 4
  compress
  missingok
  notifempty
  copytruncate
}
CONF
}

# The file is ours, the package's as it came, or not there yet. One that somebody has changed stays theirs.
log_rotation::may_write() { # file
  local sum
  [[ -e $1 && $(head -n 1 "$1") != "$OURS" ]] || return 0
  sum=$(md5sum <"$1" | cut -d ' ' -f 1)
  # shellcheck disable=SC2016 # dpkg-query reads it
  dpkg-query -W -f '${Conffiles}\n' "${1##*/}" 2>/dev/null | grep -qxF " $1 $sum"
}

log_rotation::file() { # name <content
  local -r file=$FOLDER/$1
  if log_rotation::may_write "$file"; then
    sed '/^$/d' | want::file "$file" 0644
  else
    cat >/dev/null
  fi
}

# What logrotate itself says of our logs; two files that name the same log stop the second one. That a log of somebody's
# is not there yet is no reason.
log_rotation::refused() {
  local said
  said=$(timeout 60 logrotate --debug /etc/logrotate.conf 2>&1) || true
  said=$(grep -v '^error: stat of ' <<<"$said") || true
  grep -m 1 -E '^error: .*(slurm|muster|docker\.log|dcgm)' <<<"$said"
}

step::state() {
  local why
  want::program logrotate logrotate
  if [[ $C_PLATFORM == plain && $N_ROLE == compute ]]; then
    log_rotation::slurm slurmd | log_rotation::file slurmd
  fi
  if [[ $C_PLATFORM == plain && $N_ROLE == head ]]; then
    log_rotation::slurm slurmctld | log_rotation::file slurmctld
    [[ $C_ACCOUNTING_DATABASE == off ]] || log_rotation::slurm slurmdbd | log_rotation::file slurmdbd
  fi
  log_rotation::muster | log_rotation::file muster
  command -v logrotate >/dev/null || return 0
  if why=$(log_rotation::refused); then
    step::differs "$why" || step::fail 65 "logrotate refuses a log: ${why#error: }. See: logrotate --debug /etc/logrotate.conf"
  fi
}

main() { step::run "$@"; }

main "$@"
