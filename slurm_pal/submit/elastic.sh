# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2154,SC2030,SC2031 # part of wrapper.sh, where the other variables are
# == elastic: the base job and its companions know of each other by small files in a directory that all nodes see ==
# `base` has "RESTARTS BEAT HOST" of the base job, `c.ID` has "RESTARTS-OF-BASE RESTARTS BEAT" of each companion that
# runs, `workers` the size. A BEAT grows every few seconds. Whoever reads one judges by their own clock how long it has
# not grown, so clocks of nodes may differ. Slurm is asked only when something has ended, once or a few times.
pal_role=@ROLE@ # base or companion
pal_base=@BASE@ # the base job's id
pal_min=@MIN@
pal_max=@MAX@
pal_folder=@FOLDER@ # and the base job's id
pal_hook=@HOOK@ # a shell command, run in the base job when its size has changed
pal_beat_s=@BEAT@
pal_stale_s=@STALE@ # so long after its last beat a companion counts
pal_wait_s=@WAIT@   # so long a companion waits for a base job that should be there
pal_leave_s=10      # between SIGTERM and SIGKILL for the script of a companion that leaves
pal_keeper=""
declare -A pal_heard=() pal_heard_at=()

# A pause that starts no process: nobody writes into fd 4.
pal_rest() { read -r -t "$1" -u 4; }

# What Slurm says of job $1: "running N", "waiting N", "ending N" (N: its restarts) or "gone"; nothing if it is silent.
pal_look() {
  local said state restarts
  said=$(pal_plain_slurm; command -p timeout 20 squeue -h -j "$1" -O state:30,restartcnt:12 2>&1 4<&-) || {
    [[ $said != *"Invalid job id"* ]] || echo gone
    return
  }
  read -r state restarts <<< "$said"
  case $state in
    "" | COMPLETED | CANCELLED | FAILED | TIMEOUT | NODE_FAIL | PREEMPTED | BOOT_FAIL | DEADLINE | OUT_OF_MEMORY | REVOKED) echo gone ;;
    PENDING | REQUEUED | REQUEUE_HOLD | REQUEUE_FED | RESV_DEL_HOLD | SPECIAL_EXIT) echo "waiting $restarts" ;;
    COMPLETING | STAGE_OUT) echo "ending $restarts" ;;
    *) echo "running $restarts" ;;
  esac
}

# End all companions; a companion ends those that wait, since the others find out, and it would end itself first.
pal_dismiss() {
  local which=()
  [ "$pal_role" = base ] || which=(--state=PENDING)
  (pal_plain_slurm; command -p timeout 20 scancel "${which[@]}" --name="pal-elastic-$pal_base" --user="$UID" 4<&-)
}

# Put this companion back into the queue until the base job runs. Slurm ends it at once, but not what says so here:
# that heeds no SIGTERM, and the batch shell waits for it. slurmctld may need several tries (24.11 and later).
pal_back() {
  (
    trap '' TERM
    pal_plain_slurm
    try=""
    echo > "$pal_dir/back"
    if command -p timeout 20 scontrol requeue "$SLURM_JOB_ID" 4<&-; then
      for try in 1 2 3 4 5 6 7 8; do
        command -p timeout 20 scontrol update "JobId=$SLURM_JOB_ID" "Dependency=after:$pal_base" 4<&- && break
        pal_rest 0.1
      done
      try=0
    fi
    command -p rm -f -- "$pal_dir/back"
    [ "$try" = 0 ]
  )
}

# The number of workers of run $1 of the base job, in pal_workers: its own, and the companions that are heard.
pal_count() {
  local file line
  pal_workers=$pal_min
  for file in "$pal_folder"/c.[0-9]*; do
    read -r line < "$file" || line=${pal_heard[$file]} # it is just being written, or is gone
    [[ -e $file && $line =~ ^([0-9]+)\ [0-9]+\ [0-9]+$ && ${BASH_REMATCH[1]} = "$1" ]] || continue
    [ "$line" = "${pal_heard[$file]}" ] || { pal_heard[$file]=$line; pal_heard_at[$file]=$SECONDS; }
    ((SECONDS - pal_heard_at[$file] > ${pal_stale_s%.*})) || pal_workers=$((pal_workers + 1))
  done
}

pal_note() {
  echo "$pal_workers" > "$SLURM_PAL_WORKERS_FILE.new" &&
    command -p mv -f -- "$SLURM_PAL_WORKERS_FILE.new" "$SLURM_PAL_WORKERS_FILE"
}

# Run the hook in the background, one at a time. A change meanwhile is for the next one.
pal_report() {
  [ -n "$pal_hook" ] && [ "$pal_workers" != "$pal_reported" ] || return
  [ -z "$pal_hooking" ] || ! kill -0 "$pal_hooking" || return
  pal_reported=$pal_workers
  (
    # shellcheck disable=SC2086 # words on purpose
    trap - $pal_deadly
    PAL_PAYLOAD_PID=$(< "$pal_dir/payload")
    export SLURM_PAL_WORKERS=$pal_workers PAL_PAYLOAD_PID
    /bin/bash -c "$pal_hook" 2>&5 5>&- 4<&- || pal_say "the hook failed with status $? ($pal_workers workers)"
  ) < /dev/null 3<&- &
  pal_hooking=$!
}

# Whether the batch shell was killed. Where Slurm follows processes by their parents, it does not find its children then.
pal_alone() {
  local stat
  read -r stat < /proc/self/stat
  read -r _ stat _ <<< "${stat##*) }"
  [ "$stat" != "$$" ]
}

# Beside the script of the base job, until it ends.
pal_keep_base() {
  local beat=1 before
  pal_reported=$pal_min pal_hooking=""
  while :; do
    pal_rest "$pal_beat_s"
    if pal_alone; then pal_end_base; exit; fi
    beat=$((beat + 1))
    echo "$pal_requeues $beat $pal_host" > "$pal_folder/base"
    before=$pal_workers
    pal_count "$pal_requeues"
    [ "$pal_workers" = "$before" ] || pal_note
    pal_report
  done
}

# A companion's script is to end: by SIGTERM, and soon after by SIGKILL.
pal_leave() {
  pal_say "this companion ends: $1"
  echo > "$pal_dir/left"
  kill -s TERM "$$"
  pal_rest "$pal_leave_s"
  kill -s KILL "$(< "$pal_dir/payload")"
  exit
}

# The base job is not heard as it was. Return if it is only slow ($1 is "slow": its file is there); else set pal_why,
# empty where this companion will start anew.
pal_follow() {
  local until_s=$((SECONDS + ${pal_wait_s%.*})) pause_s=1 state line
  while :; do
    state=$(pal_look "$pal_base")
    line=""
    read -r line < "$pal_folder/base"
    case $state in
      "running $pal_at") if [ "$1" = slow ] || [ "${line%% *}" = "$pal_at" ]; then return 0; fi ;;
      running* | waiting*) pal_why="job $pal_base starts anew" && pal_back && pal_why=""; return 1 ;;
      gone) pal_dismiss; pal_why="job $pal_base has ended"; return 1 ;;
    esac
    if [ "$SECONDS" -ge "$until_s" ]; then
      pal_why="job $pal_base has ended or cannot be asked for"
      [ "$1" = slow ]
      return
    fi
    pal_rest "$pause_s"
    ((pause_s >= 15)) || pause_s=$((pause_s * 2))
  done
}

# Beside the script of a companion, until one of the two ends.
pal_keep_companion() {
  local beat=1 line own seen="" at_s=$SECONDS how
  while :; do
    pal_rest "$pal_beat_s"
    if pal_alone; then command -p rm -f -- "$pal_mine"; exit; fi
    # A node that Slurm has given up may run this companion still, while it has started anew elsewhere.
    if read -r _ own _ < "$pal_mine" && [ "$own" -gt "$pal_requeues" ]; then pal_leave "it runs elsewhere, too"; fi
    beat=$((beat + 1))
    echo "$pal_at $pal_requeues $beat" > "$pal_mine"
    how=""
    if read -r line < "$pal_folder/base"; then
      [ "$line" = "$seen" ] || { seen=$line; at_s=$SECONDS; }
      [ "${line%% *}" = "$pal_at" ] || how=other
    elif [ ! -e "$pal_folder/base" ]; then
      how=none
    fi
    [ -n "$how" ] || ((SECONDS - at_s <= ${pal_stale_s%.*})) || how=slow
    [ -n "$how" ] || continue
    if pal_follow "$how"; then at_s=$SECONDS; continue; fi
    [ -z "$pal_why" ] || pal_leave "$pal_why"
    while :; do pal_rest 60; done # Slurm ends all this
  done
}

# Wait for the base job. A companion holds its node for a bounded time only if that does not run.
pal_meet() {
  local until_s=$((SECONDS + ${pal_wait_s%.*})) state line pause_s=1
  while :; do
    state=$(pal_look "$pal_base")
    case $state in
      gone) pal_dismiss; pal_say "job $pal_base has ended: this companion has nothing to do"; exit 0 ;;
      waiting*)
        pal_back || { pal_say "job $pal_base waits, and this companion cannot be requeued"; exit 1; }
        pal_rest 60 # Slurm ends all this
        exit 143
        ;;
    esac
    while [[ $state == running* ]] && [ "$SECONDS" -lt "$until_s" ]; do
      [[ $pal_got != *TERM* ]] || exit 143
      if read -r line < "$pal_folder/base" && [ "${line%% *}" = "${state#* }" ]; then
        pal_at=${line%% *} pal_host=${line##* }
        return
      fi
      pal_rest 0.5
    done
    [[ $pal_got != *TERM* ]] || exit 143
    [ "$SECONDS" -lt "$until_s" ] || break
    pal_rest "$pause_s"
    ((pause_s >= 15)) || pause_s=$((pause_s * 2))
  done
  pal_say "job $pal_base is not to be seen in $pal_folder: is that on a file system of all nodes?"
  exit 1
}

pal_needs_room() { true; }

pal_join() {
  if command -p mkfifo -m 0600 "$pal_dir/rest"; then exec 4<> "$pal_dir/rest"; else pal_rest() { command -p sleep "$1"; }; fi
  [ "$pal_role" = companion ] || pal_base=$SLURM_JOB_ID
  pal_folder+=$pal_base
  pal_mine=$pal_folder/c.$SLURM_JOB_ID
  export SLURM_PAL_ROLE=$pal_role SLURM_PAL_BASE=$pal_base SLURM_PAL_MIN=$pal_min SLURM_PAL_MAX=$pal_max
  export SLURM_PAL_WORKERS_FILE=$pal_folder/workers SLURM_PAL_WORKERS SLURM_PAL_ENDPOINT
  unset SLURM_PAL_ELASTIC SLURM_PAL_ELASTIC_PARTITION SLURM_PAL_ELASTIC_HOOK SLURM_PAL_FORK # not of the jobs that it submits
  if [ "$pal_role" = base ]; then
    pal_at=$pal_requeues pal_host=$(command -p uname -n) pal_workers=$pal_min
    command -p mkdir -p -m 0700 -- "$pal_folder"
    if [ -O "$pal_folder" ] && [ ! -L "$pal_folder" ] && pal_note && echo "$pal_at 1 $pal_host" > "$pal_folder/base"; then
      command -p rm -f -- "$pal_folder"/c.[0-9]* # of an earlier run
    else
      pal_say "no companion can join: $pal_folder cannot be written, or belongs to somebody else"
      pal_dismiss &
      pal_folder=$pal_dir/alone SLURM_PAL_WORKERS_FILE=$pal_dir/alone/workers
      command -p mkdir "$pal_folder"
      pal_note
    fi
    # shellcheck disable=SC2086 # words on purpose
    (trap '' $pal_deadly; pal_keep_base) < /dev/null &
  else
    pal_meet
    echo "$pal_at $pal_requeues 1" > "$pal_mine"
    pal_count "$pal_at"
    # shellcheck disable=SC2086 # words on purpose
    (trap '' $pal_deadly; pal_keep_companion) < /dev/null 3<&- &
  fi
  pal_keeper=$!
  SLURM_PAL_WORKERS=$pal_workers SLURM_PAL_ENDPOINT=$pal_host:$((20000 + pal_base % 12000))
}

# Remove the directory, unless a companion that ends at this moment still writes into it: that one will remove it.
pal_tidy() {
  local try
  for try in 1 2 3 4 5; do
    command -p rm -f -- "$pal_folder"/c.[0-9]*
    ! command -p rmdir -- "$pal_folder" || return
    pal_rest 0.2
  done
}

# The base job has ended, unless Slurm starts it anew.
pal_end_base() {
  command -p rm -f -- "$pal_folder/base"
  case $(pal_look "$SLURM_JOB_ID") in
    "running $pal_requeues" | "ending $pal_requeues" | gone)
      pal_dismiss
      command -p rm -f -- "$pal_folder/workers" "$pal_folder/workers.new"
      pal_tidy
      ;;
  esac
}

# Nobody is to count on this job any more.
pal_vanish() {
  kill -s KILL "$pal_keeper"
  if [ "$pal_role" = base ]; then command -p rm -f -- "$pal_folder/base"; return; fi
  command -p rm -f -- "$pal_mine"
  command -p rmdir -- "$pal_folder" # where it is the last one
}

# The job got SIGTERM: it may be cancelled or requeued, or its user may only have something to say to it.
pal_ends_perhaps() {
  [ -n "$pal_keeper" ] && [ ! -e "$pal_dir/left" ] || return
  (
    trap '' TERM
    case $(pal_look "$SLURM_JOB_ID") in
      "ending $pal_requeues" | gone)
        pal_vanish
        [ "$pal_role" = companion ] || pal_dismiss
        ;;
      ending* | waiting*) pal_vanish ;;
    esac
  ) < /dev/null 3<&- &
}

# The script of this companion has failed by itself. If that is because of its base job's end, the failure is none.
pal_settle() {
  local line first until_s=$((SECONDS + 3 * (${pal_beat_s%.*} + 1)))
  read -r first < "$pal_folder/base"
  while [ "$SECONDS" -lt "$until_s" ] && [ -z "$pal_got" ] && read -r line < "$pal_folder/base" && [ "${line%% *}" = "$pal_at" ]; do
    [ "$line" = "$first" ] || return # it goes on, and this companion is to blame
    pal_rest 0.5
  done
  [[ $pal_got != *TERM* ]] || return
  pal_why="job $pal_base is not heard"
  if pal_follow slow; then pal_back && pal_why=""; fi
  if [ -n "$pal_why" ]; then pal_status=0; else pal_rest 60; fi
}

# At the end of the script, and of all.
pal_part() {
  local try=0
  while [ -e "$pal_dir/back" ] && [ "$((try += 1))" -lt 100 ]; do pal_rest 0.1; done
  [ -n "$pal_keeper" ] || return
  pal_vanish
  pal_keeper=""
  if [ "$pal_role" = companion ]; then
    if [ -e "$pal_dir/left" ]; then pal_status=0; elif [ "$pal_status" != 0 ] && [ -z "$pal_ending" ]; then pal_settle; fi
    return
  fi
  pal_end_base
}
