#!/usr/bin/env bash
# Plugins of srun, built on the node: Slurm takes one only from the release whose headers it was built with.
set -euo pipefail

readonly SPANK_FOLDER=/usr/local/lib/slurm

# want::plugin NAME OPTION VERSION BUILD: NAME.so is there, was built from that version for the Slurm that is here, and srun
# knows its option. `BUILD FOLDER` fills a folder with sources whose `make install` takes prefix and DESTDIR. With the version
# any, each will do, and one that somebody else has put there stays.
want::plugin() {
  local -r plugin=$SPANK_FOLDER/$1.so
  local why
  want::program srun slurm-client
  step::checking && ! command -v srun >/dev/null && return 0
  spank::is_right "$1" "$3" || step::differs "$plugin: not built for Slurm $(spank::slurm)" || spank::build "$1" "$2" "$4"
  if [[ -e $plugin ]]; then
    why=$(spank::loads "$plugin" "$2") || step::differs "srun does not take $plugin" ||
      step::fail 1 "srun does not take $plugin: $why"
  fi
}

# spank::srun LINE WORD...: an srun that reads nothing but this line of plugstack.conf.
spank::srun() {
  local -r folder=$MUSTER_STATE/spank
  mkdir -p "$folder"
  printf 'ClusterName=proof\nSlurmctldHost=localhost\nNodeName=localhost\n' >"$folder/slurm.conf"
  echo "$1" >"$folder/plugstack.conf"
  SLURM_CONF=$folder/slurm.conf timeout 60 srun "${@:2}" 2>&1
}

spank::slurm() {
  spank::srun "" --version | awk '{ print $2 }'
}

spank::is_right() { # name version
  local -r built=$SPANK_FOLDER/$1.built
  local version slurm
  [[ -e $SPANK_FOLDER/$1.so ]] || return 1
  if [[ ! -e $built ]]; then
    [[ $2 == any ]]
    return
  fi
  read -r version slurm <"$built" || return 1
  [[ $2 == "$version" || $2 == any ]] && [[ $slurm == "$(spank::slurm)" ]]
}

# spank::loads PLUGIN OPTION: an srun that reads nothing but this plugin knows the option. Otherwise prints why not.
spank::loads() {
  local said
  said=$(spank::srun "required $1" --help) || true
  grep -q -- "$2" <<<"$said" || {
    grep -m 1 '^srun: error' <<<"$said" || echo "$2 is not in srun --help"
    return 1
  }
}

# The headers that belong to this srun, as a word for the compiler.
spank::headers() {
  local prefix
  prefix=$(readlink -f "$(command -v srun)")
  prefix=${prefix%/bin/*}
  if [[ $prefix != /usr && -e $prefix/include/slurm/spank.h ]]; then
    echo "-I$prefix/include"
  else
    want::packages libslurm-dev >&2
  fi
}

spank::build() { # name option cmd
  local -r plugin=$SPANK_FOLDER/$1.so built=$SPANK_FOLDER/$1.built
  local folder headers why version
  rm -rf "$MUSTER_STATE"/spank.*
  want::packages make gcc libc6-dev
  headers=$(spank::headers)
  folder=$(mktemp -d "$MUSTER_STATE/spank.XXXXXX")
  version=$("$3" "$folder")
  # By the environment: on make's command line they would replace the flags of the makefile.
  CPPFLAGS=$headers timeout 600 make -C "$folder" install prefix=/usr/local DESTDIR="$folder/out" >"$folder/log" 2>&1 ||
    step::fail 1 "$1 $version cannot be built for Slurm $(spank::slurm): $(grep -m 1 -i error "$folder/log" || tail -n 1 "$folder/log")"
  why=$(spank::loads "$folder/out$plugin" "$2") || step::fail 1 "Slurm $(spank::slurm) does not take $1 $version: $why"
  rm -f "$built" # who is killed now builds again
  want::put "$folder/out$plugin" "$plugin" 0644 root:root
  want::file "$built" 0644 <<<"$version $(spank::slurm)"
  rm -rf "$folder"
}

main() {
  echo "this file is read by steps, not run" >&2
  exit 64
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
