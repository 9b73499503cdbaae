#!/usr/bin/env bash
# For clouds where cloud-init starts machines: `runcmd: [[bash, /opt/muster/lifecycle/on_first_boot.sh]]`.
#
# The description is in the machine's user data, below the key `muster:`.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly HERE

main() {
  exec bash "$HERE/create.sh" --user-data "${MUSTER_USER_DATA:-/var/lib/cloud/instance/user-data.txt}" "$@"
}

main "$@"
