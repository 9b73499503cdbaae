#!/usr/bin/env bash
# Runs Docker, with its images on the node's own disk and logs that do not grow for ever, and ends the containers that a job leaves behind.
#
# needs: packages scratch
# when: containers.docker
# optional: jobs run in Enroot
# limit_s: 1200
set -euo pipefail
# shellcheck source=lifecycle/lib/step.sh
source "$MUSTER_LIB/step.sh"

readonly DAEMON=/etc/docker/daemon.json

# Whoever may use it is root on the node: nobody is put into its group here.
docker::settings() {
  local -a ours=('log-driver="json-file"' 'log-opts={"max-size": "50m", "max-file": "3"}' 'live-restore=true')
  [[ $N_ROLE != compute ]] || ours+=("data-root=\"$C_SCRATCH_PATH/docker\"")
  if command -v nvidia-container-runtime >/dev/null; then
    ours+=('runtimes={"nvidia": {"path": "nvidia-container-runtime", "args": []}}')
  fi
  # The keys of others in the file stay.
  python3 -I - "$DAEMON" "${ours[@]}" <<'PY'
import json, pathlib, sys
path = pathlib.Path(sys.argv[1])
values = json.loads(path.read_text() or "{}") if path.exists() else {}
for word in sys.argv[2:]:
    key, _, value = word.partition("=")
    value = json.loads(value)
    both = isinstance(value, dict) and isinstance(values.get(key), dict)
    values[key] = {**values[key], **value} if both else value
print(json.dumps(values, indent=2))
PY
}

docker::daemon() {
  setsid dockerd >>/var/log/docker.log 2>&1 &
  disown
}

docker::answers() {
  timeout 20 docker info >/dev/null 2>&1
}

step::state() {
  local settings ours
  # A dockerd that is there, of whatever package, stays.
  command -v dockerd >/dev/null || step::differs "dockerd: missing" ||
    packages::need docker.io "add the source of another package that has dockerd, and that package to 'packages'"
  settings=$(docker::settings) || step::fail 78 "$DAEMON is no JSON: correct it"
  [[ $N_ROLE != compute ]] || want::folder "$C_SCRATCH_PATH/docker" 0710
  want::file "$DAEMON" 0644 <<<"$settings"
  ours=$(assets::folder containers/docker)
  slurm::around_jobs "$ours/epilog.d"
  step::checking && ! command -v dockerd >/dev/null && return 0
  want::service_with "$(service::sum "$DAEMON")" docker dockerd docker::daemon
  docker::answers || step::differs "docker does not answer" || wait::until 60 docker::answers ||
    step::fail 75 "docker does not answer after 60 s: $(timeout 20 docker info 2>&1 | tail -n 1)"
}

main() { step::run "$@"; }

main "$@"
