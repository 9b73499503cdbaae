#!/usr/bin/env bash
# The smallest recipe: the contract in ten lines of bash. Rank 0 "trains", the others show life.
step=0 && leave=0 && trap 'leave=1' USR2 TERM
[[ -z ${MUSTER_RESUME:-} ]] || step=$(<"$MUSTER_RESUME/step")
beat() { echo "{\"pid\":$$,\"phase\":\"step\",\"step\":$step}" >"$MUSTER_BEAT_DIR/rank_$RANK.json"; }
save() { echo "$step" >step && (trap '' TERM USR2 && RANK=0 WORLD_SIZE=1 MUSTER_BEAT_DIR="" python3 -m resume save "$step" step) || return 74; }
log() { local now && now=$(date +%s.%N) && echo "{\"step\":$step,\"loss\":$((9000 - step)),\"samples\":\"$step\",\"time\":$now,\"attempt\":$MUSTER_ATTEMPT}" >>"$MUSTER_RUN_DIR/metrics.jsonl"; }
while ((step < ${1:-30} && leave == 0)) && [[ ! -e $MUSTER_RUN_DIR/DONE ]]; do
  beat && sleep 0.1
  ((RANK)) || { step=$((step + 1)) && log && { ((step % 5)) || save; } || exit 74; }
done
((RANK || leave == 0 || step % 5 == 0)) || save || exit 74
((RANK || leave)) || echo "{\"step\":$step}" >"$MUSTER_RUN_DIR/DONE"
