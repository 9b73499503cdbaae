#!/usr/bin/env bash
# Secrets: read from where the description says, kept in files of root's, never printed and never on a command line.
set -euo pipefail

# secret::fetch NAME FILE CMD...: the secret is in $MUSTER_SECRETS/NAME, from a file or from a command that prints it.
# Without either a random one is made, once.
secret::fetch() {
  local -r place=$MUSTER_SECRETS/$1 file=$2
  local part
  shift 2
  if [[ -z $file && $# -eq 0 && -s $place ]]; then
    return 0
  fi
  part=$(umask 077 && mktemp "$MUSTER_SECRETS/.new.XXXXXX")
  if [[ -n $file ]]; then
    cat "$file" >"$part" || step::fail 75 "the secret's file $file cannot be read"
  elif (($# > 0)); then
    timeout 60 "$@" >"$part" </dev/null || step::fail 75 "the command for the secret, $1, failed"
  else
    secret::random >"$part"
  fi
  [[ -s $part ]] || step::fail 75 "the secret from ${file:-$1} is empty"
  if cmp -s "$part" "$place"; then rm -f "$part"; else mv -f "$part" "$place"; fi
}

# secret::stale NAME FILE: the file, if there is one, holds another secret by now. A command is not asked again for that.
secret::stale() {
  [[ -n $2 && -s $2 && -s $MUSTER_SECRETS/$1 ]] && ! cmp -s "$2" "$MUSTER_SECRETS/$1"
}

# 32 random bytes in hexadecimal: no character that anybody would have to quote.
secret::random() {
  od -An -tx1 -N32 /dev/urandom | tr -d ' \n'
  echo
}

# The secret on standard output, for a pipe, without its last line end.
secret::print() {
  printf %s "$(<"$MUSTER_SECRETS/$1")"
}

# The secret as a value of Slurm's files: in double quotes, or without white space; # would begin a comment, and \ takes a
# letter's meaning away. Call it as `x=$(secret::for_slurm NAME)`, not behind `local`: it may end the step.
secret::for_slurm() {
  local text
  text=$(secret::print "$1" | sed 's/[\\#]/\\&/g')
  case $text in
    *[[:space:]]*\"* | *\"*[[:space:]]*)
      step::fail 78 "a password with white space and a double quote cannot stand in a file of Slurm's: choose another"
      ;;
    *[[:space:]]*) printf '"%s"' "$text" ;;
    *) printf %s "$text" ;;
  esac
}

main() {
  echo "this file is read by steps, not run" >&2
  exit 64
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
