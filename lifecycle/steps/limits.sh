#!/usr/bin/env bash
# Lets jobs lock memory for RDMA and open many files; slurmd gets the same limits, since jobs inherit its own.
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

step::state() {
  want::file /etc/security/limits.d/muster.conf 0644 <<'CONF'
# Written by muster. RDMA registers memory, which must be locked; data loaders open files by the thousand.
* soft memlock unlimited
* hard memlock unlimited
* soft stack unlimited
* hard stack unlimited
* soft nofile 1048576
* hard nofile 1048576
CONF
  want::file /etc/sysctl.d/90-muster.conf 0644 <<'CONF'
# Written by muster.
kernel.pid_max = 4194304
fs.inotify.max_user_instances = 8192
net.core.somaxconn = 4096
CONF
  # Jobs do not log in: they inherit the limits of slurmd.
  if [[ $N_ROLE == compute ]]; then
    want::file /etc/systemd/system/slurmd.service.d/muster.conf 0644 <<'CONF'
# Written by muster.
[Service]
LimitMEMLOCK=infinity
LimitSTACK=infinity
LimitNOFILE=1048576
CONF
  fi
  if service::systemd; then
    limits::applied || step::differs "sysctl: not applied" || sysctl -q -p /etc/sysctl.d/90-muster.conf
  fi
}

limits::applied() {
  [[ $(sysctl -n kernel.pid_max) == 4194304 && $(sysctl -n net.core.somaxconn) == 4096 ]]
}

main() { step::run "$@"; }

main "$@"
