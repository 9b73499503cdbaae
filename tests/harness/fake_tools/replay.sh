#!/usr/bin/env bash
# Replays recorded answers under the name it is called by: nvidia-smi, journalctl, scontrol, ...
#
# answers/NAME/ lies beside the folder of this link: N.words (arguments contain this text), N.out,
# N.err, N.rc; the first that fits answers. Every call is appended to answers/NAME/calls. Faults to
# order, in $FAKE_NAME (as FAKE_NVIDIA_SMI) or in answers/NAME/faults, separated by commas:
#   FILE        say what this file of answers/NAME holds instead
#   rc=15       end with this exit status
#   sleep=30    wait so many seconds first
#   trap        ignore TERM, and leave a child that does too
#   trunc=100   say only the first 100 bytes
#   garbage=99  say 99 bytes of noise instead
set -uo pipefail
shopt -s nullglob

name=${0##*/}
at=${0%/*}/../answers/$name
readonly name at

replay::find() { # ARGUMENTS: sets found to the answer without its suffix
  local file words
  found=
  for file in "$at"/*.words; do
    words=
    IFS= read -r words <"$file"
    if [[ $* == *"$words"* ]]; then
      found=${file%.words}
      return
    fi
  done
}

replay::faults() { # sets said, rc and bytes; waits if it is told to
  local variable=FAKE_${name^^} orders fault
  variable=${variable//[!A-Z0-9_]/_}
  orders=${!variable-}
  [[ -z $orders && -r $at/faults ]] && orders=$(<"$at/faults")
  for fault in ${orders//,/ }; do
    case $fault in
      rc=*) rc=${fault#*=} ;;
      trunc=*) bytes=${fault#*=} ;;
      garbage=*) said=/dev/urandom bytes=${fault#*=} ;;
      sleep=*) sleep "${fault#*=}" ;;
      trap)
        trap '' TERM
        sleep 60 &
        ;;
      *) said=$at/$fault ;;
    esac
  done
}

main() {
  local found said rc=2 bytes=
  echo "$*" >>"$at/calls"
  replay::find "$@"
  said=${found:+$found.out}
  [[ -n $found ]] && read -r rc <"$found.rc"
  replay::faults
  if [[ -z $said ]]; then
    echo "$name: no recorded answer for: $*" >&2
    exit "$rc"
  fi
  if [[ -n $bytes ]]; then head -c "$bytes" "$said"; else cat "$said"; fi
  [[ -n $found && -s $found.err ]] && cat "$found.err" >&2
  exit "$rc"
}

main "$@"
