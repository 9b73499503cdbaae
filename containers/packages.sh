#!/usr/bin/env bash
# Runs while an image is built: puts the Python packages of images.yaml on top of the base's, and proves both.
#
# PACKAGES: what is installed, "name==version ...". PROVIDES: what the base has to have. What the base provides is
# held: a torch from PyPI in place of NVIDIA's is an image that trains slower, or not at all.
# Where `muster image build --wheels` has shown a folder of wheels, pip asks no index.
set -euo pipefail

packages::install() {
  local -r wheels=/tmp/muster-wheels
  local -a wanted index=()
  read -ra wanted <<<"$PACKAGES"
  [[ ! -d $wheels ]] || index=(--no-index --find-links "$wheels")
  python3 - "${PROVIDES:-}" >/tmp/held.txt <<'PY'
import importlib.metadata, sys
for word in sys.argv[1].split():
    name = word.partition("==")[0]
    print(f"{name}=={importlib.metadata.version(name)}")
PY
  # The base may hold other packages at other versions: only what it provides to us is held.
  env -u PIP_CONSTRAINT python3 -m pip install --no-cache-dir "${index[@]}" -c /tmp/held.txt "${wanted[@]}"
  rm -f /tmp/held.txt
}

# "2.10.0a0" is proven by 2.10.0a0+b4e4ee81d3.nv25.12 too.
packages::prove() {
  python3 - "${PROVIDES:-} ${PACKAGES:-}" <<'PY'
import importlib.metadata, sys
for word in sys.argv[1].split():
    name, _, wanted = word.partition("==")
    try:
        found = importlib.metadata.version(name.partition("[")[0])
    except importlib.metadata.PackageNotFoundError:
        found = "missing"
    if found.partition("+")[0] != wanted:
        sys.exit(f"packages.sh: {name} is {found}, not {wanted}. Fix: correct images.yaml or the base")
PY
}

main() {
  [[ -z ${PACKAGES:-} ]] || packages::install
  packages::prove
}

main "$@"
