#!/usr/bin/env bash
# Trains on poison: the loss of batch 12 is not finite. Obeys MUSTER_SKIP (one window).
step=0 && leave=0 && trap 'leave=1' USR2
[[ -z ${MUSTER_RESUME:-} ]] || step=$(<"$MUSTER_RESUME/step")
IFS=- read -r first last <<<"${MUSTER_SKIP:-0-0}"
beat() { echo "{\"pid\":$$,\"phase\":\"step\",\"step\":$step}" >"$MUSTER_BEAT_DIR/rank_$RANK.json"; }
save() { echo "$step" >step && RANK=0 WORLD_SIZE=1 MUSTER_BEAT_DIR="" python3 -m resume save "$step" step; }
log() { local now && now=$(date +%s.%N) && echo "{\"step\":$step,\"batch\":$batch,\"samples\":\"$batch\",\"loss\":$loss,\"time\":$now,\"attempt\":$MUSTER_ATTEMPT}" >>"$MUSTER_RUN_DIR/metrics.jsonl"; }
while ((step < ${1:-30} && leave == 0)) && [[ ! -e $MUSTER_RUN_DIR/DONE ]]; do
  beat && sleep 0.1
  ((RANK)) && continue
  step=$((step + 1)) && batch=$step && loss=2.5
  ((first == 0 || batch < first)) || batch=$((batch + last - first + 1))
  ((batch != 12)) || loss=NaN
  log || exit 74
  [[ $loss == NaN ]] || ((step % 5)) || save || exit 74
done
((RANK || leave)) || echo "{\"step\":$step}" >"$MUSTER_RUN_DIR/DONE"
