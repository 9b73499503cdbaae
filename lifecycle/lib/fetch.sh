#!/usr/bin/env bash
# Files that no distribution has: from the shared disk where somebody put them, else from where they are published.
#
# A cluster without a way out gets them into shared_dir/packages once; with one, the first node that fetches a file puts
# it there for the others.
set -euo pipefail

readonly FETCH_CACHE=/var/cache/muster/packages

# fetch::file NAME URL: prints the path of the file on this node's disk. Call it as `x=$(fetch::file ...)`, not behind
# `local`: it may end the step.
fetch::file() {
  local -r name=$1 url=$2 cached=$FETCH_CACHE/$1
  if [[ ! -s $cached ]] || ! fetch::right "$name" "$cached"; then
    install -d -m 0755 "$FETCH_CACHE"
    fetch::from_shared "$name" || fetch::from_url "$name" "$url"
  fi
  echo "$cached"
}

# What cluster.yaml says about the file holds; without a checksum there nothing is said.
fetch::right() { # name path
  local -r wanted=$(fetch::checksum "$1")
  [[ -z $wanted || $(sha256sum <"$2") == "$wanted  -" ]]
}

fetch::checksum() { # name
  local i
  for i in "${!C_CHECKSUMS_KEYS[@]}"; do
    [[ ${C_CHECKSUMS_KEYS[i]} != "$1" ]] || echo "${C_CHECKSUMS_VALUES[i],,}"
  done
}

fetch::from_shared() { # name
  local -r shared=$C_SHARED_DIR/packages/$1
  [[ -n $C_SHARED_DIR && -s $shared ]] || return 1
  # It will be run as root here.
  [[ -n $(fetch::checksum "$1") ]] || fetch::only_roots "${shared%/*}" "$shared" ||
    step::fail 65 "$shared could be anybody's: give it and its folder to root alone, or its checksum in cluster.yaml"
  fetch::right "$1" "$shared" || step::fail 65 "$shared has another checksum than cluster.yaml says"
  fetch::keep "$1" cp "$shared"
}

fetch::only_roots() { # path...
  [[ -z $(find "$@" -maxdepth 0 \( ! -uid 0 -o -perm /022 \) 2>&1) ]]
}

fetch::from_url() { # name url
  local why
  want::packages curl ca-certificates >&2
  if ! why=$(fetch::keep "$1" fetch::download "$2" 2>&1); then
    step::fail 69 "$1 cannot be fetched from $2 (${why##*$'\n'}): put it into ${C_SHARED_DIR:-a folder shared_dir}/packages"
  fi
  fetch::right "$1" "$FETCH_CACHE/$1" || {
    rm -f "$FETCH_CACHE/$1"
    step::fail 65 "$2 has another checksum than cluster.yaml says"
  }
  echo "$1 has sha256 $(sha256sum <"$FETCH_CACHE/$1" | cut -d ' ' -f 1)" >&2
  fetch::share "$1" || true
}

fetch::download() { # url path
  curl --fail --silent --show-error --location --proto '=https' --proto-redir '=https' --retry 4 --retry-connrefused \
    --connect-timeout 20 --max-time 900 --output "$2" "$1"
}

# fetch::keep NAME CMD...: the command, with a path as its last word, makes the file; whole or not at all.
fetch::keep() {
  local -r part=$(mktemp "$FETCH_CACHE/.$1.XXXXXX")
  if "${@:2}" "$part" && chmod 0644 "$part"; then
    mv -f "$part" "$FETCH_CACHE/$1"
  else
    rm -f "$part"
    return 1
  fi
}

# For the other nodes. Nobody depends on it.
fetch::share() { # name
  local -r shared=$C_SHARED_DIR/packages
  local part
  [[ -n $C_SHARED_DIR ]] || return 0
  timeout 60 install -d -m 0755 "$shared" && part=$(mktemp "$shared/.$1.XXXXXX") &&
    timeout 300 cp "$FETCH_CACHE/$1" "$part" && chmod 0644 "$part" && mv -f "$part" "$shared/$1"
}

main() {
  echo "this file is read by steps, not run" >&2
  exit 64
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
