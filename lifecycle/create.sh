#!/usr/bin/env bash
# Makes this machine a node of the cluster: finds a Python and muster, and hands over to `muster create`.
#   create.sh [CLUSTER_YAML] [KEY=VALUE ...] [--check] [--only STEP] ...
# Run it as root on each machine, over ssh or a parallel shell, as often as you like.
#
# Nothing has been installed yet when it runs: it needs bash and python3, 3.9 or newer. muster is muster.pyz beside this
# file, or the checkout around it, or one that is installed already.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly HERE

create::fail() { # exit code, what and fix
  echo "create.sh: $(hostname): $2" >&2
  exit "$1"
}

create::python() {
  local python
  for python in python3 python3.13 python3.12 python3.11 python3.10 python3.9; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
      echo "$python"
      return
    fi
  done
  create::fail 69 "there is no python3 of 3.9 or newer. Fix: apt-get install python3"
}

create::main() {
  local python file
  python=$(create::python)
  for file in "$HERE/muster.pyz" "$HERE/../dist/muster.pyz"; do
    if [[ -f $file ]]; then
      exec "$python" "$file" create --steps "$HERE/steps" "$@"
    fi
  done
  if [[ -f $HERE/../muster/__main__.py ]]; then
    "$python" -c 'import yaml' 2>/dev/null ||
      create::fail 69 "a checkout needs PyYAML. Fix: apt-get install python3-yaml, or put muster.pyz beside it"
    PYTHONPATH=$(dirname "$HERE") exec "$python" -m muster create --steps "$HERE/steps" "$@"
  fi
  [[ -f /usr/local/bin/muster ]] || create::fail 69 "there is no muster. Fix: put muster.pyz beside it"
  exec /usr/local/bin/muster create --steps "$HERE/steps" "$@"
}

main() {
  ((EUID == 0)) || create::fail 64 "only root can create a node. Fix: sudo $0"
  create::main "$@"
}

main "$@"
