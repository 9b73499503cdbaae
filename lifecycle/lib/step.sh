#!/usr/bin/env bash
# What every step is made of: read first, by `source "$MUSTER_LIB/step.sh"`.
#
# A step says how things should be, in step::state, with the words want::*. Called as `check`, each of them only looks,
# and names what differs; called as `apply`, it makes it so. What cannot be said that way stands in step::check and
# step::apply. Nothing that is right already is touched, and a file is replaced whole or not at all.
set -euo pipefail

for file in "${BASH_SOURCE[0]%/*}"/*.sh; do
  # shellcheck source=/dev/null
  [[ $file -ef ${BASH_SOURCE[0]} ]] || source "$file"
done

readonly STEP_DIFFERS=10 # exit code of a check that found something to do

step::fail() { # exit code, what is wrong
  echo "$2" >&2
  exit "$1"
}

step::checking() {
  [[ $STEP_VERB == check ]]
}

# Something is not as it should be: `step::differs "what" || make it right`. While checking, naming it is enough.
step::differs() {
  echo "$1" | tee -a "$DIFFERENCES"
  step::checking
}

step::run() {
  STEP_VERB=${1:-}
  [[ $STEP_VERB == check || $STEP_VERB == apply ]] || step::fail 64 "usage: $0 check|apply"
  # shellcheck source=/dev/null
  source "$MUSTER_FACTS"
  umask 022
  step::alone
  DIFFERENCES=$MUSTER_STATE/differences # a file, since a variable that is set in a pipe is lost
  : >"$DIFFERENCES"
  if declare -F step::state >/dev/null; then step::state; fi
  if declare -F "step::$STEP_VERB" >/dev/null; then "step::$STEP_VERB"; fi
  if step::checking && [[ -s $DIFFERENCES ]]; then exit "$STEP_DIFFERS"; fi
}

# The muster that runs this step.
step::muster() {
  if [[ -f $MUSTER_HOME ]]; then
    "$MUSTER_PYTHON" "$MUSTER_HOME" "$@"
  else
    (cd / && PYTHONPATH=$MUSTER_HOME "$MUSTER_PYTHON" -m muster "$@") # not what lies about in a folder of somebody's
  fi
}

# A runner that was killed leaves its step behind. The next one's steps wait for that to end.
step::alone() {
  exec 9>"$MUSTER_STATE/step.lock"
  flock -w 300 9 || step::fail 75 "another step is still running: it holds $MUSTER_STATE/step.lock"
}

# want::file PATH MODE [OWNER[:GROUP]] <content: the file holds exactly that.
want::file() {
  local -r path=$1 mode=$2 owner=${3:-root:root}
  local part
  part=$(mktemp "$MUSTER_STATE/want.XXXXXX")
  cat >"$part"
  if ! cmp -s "$part" "$path"; then
    step::differs "$path: content" || want::put "$part" "$path" "$mode" "$owner"
  fi
  rm -f "$part"
  want::mode "$path" "$mode" "$owner"
}

# In the folder of the file, so that the rename cannot be half done. Missing room is found before.
want::put() { # part path mode owner
  local new
  mkdir -p "$(dirname "$2")"
  new=$(mktemp "$(dirname "$2")/.muster.XXXXXX")
  if ! { cat "$1" >"$new" && chmod "$3" "$new" && chown "$4" "$new" && sync "$new" && mv -f "$new" "$2"; }; then
    rm -f "$new" "$1"
    step::fail 74 "$2 cannot be written"
  fi
}

want::mode() { # path mode owner
  [[ -e $1 ]] || return 0
  local -r now=$(stat -c '%a %U:%G' "$1")
  local -r owner=$([[ $3 == *:* ]] && echo "$3" || echo "$3:$(id -gn "$3")")
  if [[ $now != "${2#0} $owner" ]]; then
    step::differs "$1: mode and owner are $now, not ${2#0} $owner" || {
      chmod "$2" "$1"
      chown "$3" "$1"
    }
  fi
  return 0
}

want::folder() { # path mode [owner]
  if [[ ! -d $1 ]]; then
    step::differs "$1: no such folder" || mkdir -p "$1"
  fi
  want::mode "$1" "$2" "${3:-root:root}"
}

want::link() { # path target
  if [[ $(readlink "$1" 2>/dev/null) != "$2" ]]; then
    step::differs "$1: no link to $2" || {
      ln -sfn "$2" "$1.muster"
      mv -Tf "$1.muster" "$1"
    }
  fi
  return 0
}

# want::block PATH <lines: the file has them between two lines of ours; what others wrote around them stays.
want::block() {
  local -r path=$1 name=$(basename "$0" .sh)
  local -r first="# muster create, step $name: from here" last="# muster create, step $name: to here"
  local lines
  lines=$(cat)
  {
    [[ ! -e $path ]] || sed "/^$first\$/,/^$last\$/d" "$path"
    [[ -z $lines ]] || printf '%s\n%s\n%s\n' "$first" "$lines" "$last"
  } | want::file "$path" "$([[ -e $path ]] && stat -c %a "$path" || echo 644)"
}

want::absent() { # path
  if [[ -e $1 || -L $1 ]]; then
    step::differs "$1: is there" || rm -rf "$1"
  fi
  return 0
}

main() {
  step::fail 64 "this file is read by steps, not run"
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
