#!/usr/bin/env bash
# Makes apt wait instead of fail, keeps updates away from Slurm's daemons, and installs what every node needs.
#
# limit_s: 1200
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

step::state() {
  # Left behind by a run that was killed: no daemon would ever start at its installation again.
  if packages::policy_is_ours; then
    step::differs "$PACKAGES_POLICY: is there" || packages::policy_off
  fi
  want::file /etc/apt/apt.conf.d/52muster 0644 <<'CONF'
// Written by muster. An update of these in the middle of a run kills it.
DPkg::Lock::Timeout "300";
Acquire::Retries "3";
Unattended-Upgrade::Package-Blacklist { "slurm"; "munge"; "mariadb"; "nvidia"; "libnvidia"; "linux-"; "enroot"; };
CONF
  if [[ -d /etc/needrestart ]]; then
    want::file /etc/needrestart/conf.d/muster.conf 0644 <<'CONF'
# Written by muster. needrestart would restart slurmd under running jobs.
$nrconf{override_rc}{qr(^(slurm|munge|mariadb|enroot))} = 0;
CONF
  fi
  want::packages ca-certificates iproute2 procps util-linux "${C_PACKAGES[@]}"
}

main() { step::run "$@"; }

main "$@"
