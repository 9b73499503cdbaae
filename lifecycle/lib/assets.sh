#!/usr/bin/env bash
# Files of muster's own repository that steps install on a node: from the checkout, or out of muster.pyz.
set -euo pipefail

# assets::folder PATH: prints a local folder with what lies below PATH in the repository: slurm, containers/enroot. Call it
# as `x=$(assets::folder PATH)`, not behind `local`: it may end the step.
assets::folder() {
  if [[ -d $MUSTER_HOME ]]; then
    [[ -d $MUSTER_HOME/$1 ]] || step::fail 69 "$MUSTER_HOME has no folder $1"
    echo "$MUSTER_HOME/$1"
  else
    assets::unpack "$1" || step::fail 69 "$MUSTER_HOME has no folder $1: build muster.pyz with ./run pyz"
    echo "$MUSTER_STATE/assets/$1"
  fi
}

assets::unpack() {
  python3 -I - "$MUSTER_HOME" "$1" "$MUSTER_STATE/assets" <<'PY'
import shutil, sys, zipfile
archive, folder, place = sys.argv[1:]
shutil.rmtree(f"{place}/{folder}", ignore_errors=True)
with zipfile.ZipFile(archive) as files:
    names = [name for name in files.namelist() if name.startswith(f"{folder}/")]
    files.extractall(place, names)
sys.exit(not names)
PY
}

# want::files FOLDER TARGET MODE: each file of FOLDER is in TARGET too. NN-muster* that only TARGET has is of an older
# muster, and goes; what others put there stays.
want::files() {
  local file
  want::folder "$2" 0755
  for file in "$1"/*; do
    [[ ! -f $file ]] || want::file "$2/${file##*/}" "$3" <"$file"
  done
  for file in "$2"/[0-9][0-9]-muster*; do
    [[ ! -e $file || -e $1/${file##*/} ]] || want::absent "$file"
  done
}

main() {
  echo "this file is read by steps, not run" >&2
  exit 64
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
