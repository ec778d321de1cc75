#!/bin/bash
#@HEADER@
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2317 # traps call what seems to be called by nobody
# == palsub --pal-checkpoint, --pal-elastic, --pal-note: this part runs the job's own script, which stands below ==
# If the job makes checkpoints, it makes one when the batch shell gets SIGUSR1, and then says so in the
# job's comment: pal:ack=<restart>.<number>, with ;failed=1 where there is no checkpoint. Where --pal-save-before
# wants that, and its time limit is near by then, it requeues the job: pal:cont=<how often>;of=<at most>.
pal_interpreter=(@INTERPRETER@) # of the job's own script
pal_note=(@NOTE@)               # --pal-note: a command that prints a line about the job's GPUs; none: there is no such line
pal_command=@COMMAND@           # a shell command that writes a checkpoint; or, where there is none,
pal_signal=@SIGNAL@             # the signal by which the job's processes write one; neither: it makes none
pal_first=@FIRST@               # the line at which the job's own script begins
pal_limit_s=110                 # for a checkpoint; whoever asked for one waits a little longer
pal_continue=85                 # exit status of a script that has written its checkpoint, and is to be continued
pal_requeue_s=15                # how long a requeue is waited for after such an end
pal_before_s=@BEFORE@           # --pal-save-before, 0: the job ends at its time limit; Slurm sends SIGUSR1 up to a minute sooner
pal_times=@TIMES@               # so often at most the job is continued after its time limit
pal_array=@ARRAY@               # 1: it is a task of an array
pal_mover_s=3                   # whoever asked for a checkpoint in order to move the job requeues it within this time
pal_again="the job's script is run again"
pal_deadly="HUP INT QUIT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM TERM STKFLT XCPU XFSZ VTALRM PROF IO PWR SYS"
pal_deadly+=" 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64"
pal_got=""                      # signals that nobody has looked at; with a short limit Slurm's comes at once
trap "pal_got+=' USR1'" USR1

# `command -p` finds a system's own commands, whatever the job's PATH is.
# stderr is fd 5, since bash itself reports killed children on fd 2; stdin is fd 3.
# A subshell, since SIGPIPE would be taken for a signal to the job.
pal_say() { (echo "palsub: $1" >&5); }

# What an elastic job does before its script runs, when it has got SIGTERM, and at its end.
pal_join() { :; }
pal_ends_perhaps() { :; }
pal_part() { :; }

# Where the job's own script is to stand, if not below the directory for temporary files.
pal_place() { false; }

# Whether the job cannot do without us.
pal_needs_room() { [ -n "$pal_command$pal_signal" ]; }

# In the place of the shell that calls it.
pal_exec() { exec "${pal_interpreter[@]}" "$pal_dir/slurm_script" "$@"; }

# Which process is the script.
pal_target() { echo "$pal_script"; }

# The job's own script in a private directory. Its interpreter is called by name: /tmp may be noexec.
pal_unpack() {
  local base
  for base in "${SLURM_TMPDIR:-${TMPDIR:-/tmp}}" /tmp /dev/shm; do
    pal_dir=$(command -p mktemp -d "$base/pal.$SLURM_JOB_ID.XXXXXX") || continue
    command -p tail -n "+$pal_first" "$0" > "$pal_dir/slurm_script" && return 0
    command -p rm -rf -- "$pal_dir"
  done
  return 1
}

# No place for the job's script: a job that only wants the line about its GPUs runs without us, from a pipe.
pal_without_room() {
  local text="no room for the job's script in ${SLURM_TMPDIR:-${TMPDIR:-/tmp}}, /tmp or /dev/shm"
  if pal_needs_room; then pal_say "$text"; exit 1; fi
  pal_say "$text: there will be no line about its GPUs"
  exec 2>&5 5>&-
  [ -z "$pal_set" ] || set "-$pal_set"
  [ -z "$pal_failglob" ] || shopt -s failglob
  exec "${pal_interpreter[@]}" <(command -p tail -n "+$pal_first" "$0" 3<&-) "$@" <&3 3<&-
}

# Whether bash believes that a process that we have started still runs.
pal_is_job() { [[ $'\n'$(jobs -rp)$'\n' == *$'\n'"$1"$'\n'* ]]; }

# Whether it does. In a long job its number may meanwhile be that of another one.
pal_runs() { [ -n "$1" ] && kill -0 "$1" && pal_is_job "$1"; }

# Whether bash has missed its end: it would wait for it for ever.
pal_is_missed() { ! kill -0 "$1" && pal_is_job "$1"; }

# A witness beside the script. How far a signal reaches depends on ProctrackType:
# if it has also killed the witness, the script has already received it.
pal_stand_witness() {
  (trap - INT QUIT; PATH=/usr/bin:/bin; exec sleep 2147483647) < /dev/null > /dev/null 3<&- 5>&- &
  pal_witness=$!
}

# A signal for the batch shell is for the script, which would be the batch shell without us. If the script then ends
# with 128 and the signal's number, it has died of the signal (pal_died), unless it handles that itself.
pal_forward() {
  local target number
  command -p sleep 0.1
  number=$1
  [[ $1 == [0-9]* ]] || number=$(kill -l "$1")
  if ! kill -0 "$pal_witness"; then
    pal_died=$number
    pal_stand_witness
  else
    target=$(pal_target)
    pal_died=""
    # A shell handles SIGINT, and then dies of it.
    if ! pal_takes "$target" "$number" || pal_may_die "$target" || [ "$1" = INT ]; then pal_died=$number; fi
    kill -s "$1" "$target"
  fi
}

# By squeue, the only command that prints a comment with nothing around it.
pal_comment() {
  local text
  text=$(squeue -h -j "$pal_job" -o %k) || return 1
  [ "$text" = "(null)" ] || printf '%s' "$text"
}

pal_ack_in() { [[ $1 =~ (^|[[:space:]])pal:ack=([0-9]+\.[0-9]+) ]] && echo "${BASH_REMATCH[2]}"; }

# The comment $1 without a word of the same key, and with the word $2 at its end.
pal_put() {
  local rest="$1 " kept="" part key=${2%%=*}
  while [ -n "$rest" ]; do
    part=${rest%%" "*}
    rest=${rest#*" "}
    [[ $part == "$key="* ]] || kept+="$part "
  done
  kept=${kept%"${kept##*[! ]}"}
  printf '%s' "${kept:+$kept }$2"
}

# Write the acknowledgement; $1 is "" or ";failed=1", $2 the one that was there before the checkpoint.
# It is checked afterwards, since a simultaneous `pal progress` writes the same comment.
pal_acknowledge() {
  local restart=$pal_requeues comment present text number=1 try LC_ALL=C
  [[ $2 != "$restart".* ]] || number=$((${2#*.} + 1))
  local word="pal:ack=$restart.$number$1"
  for try in 1 2 3 4; do
    [ "$try" = 1 ] || command -p sleep 1
    comment=$(pal_comment) || continue
    present=$(pal_ack_in "$comment")
    [ "$present" != "$restart.$number" ] || return 0 # ours, or the script's own by `pal ack`
    text=$(pal_put "$comment" "$word")
    [ "${#text}" -le 1000 ] || break
    scontrol update "JobId=$pal_job" "Comment=$text"
  done
  pal_say "the checkpoint cannot be acknowledged in the comment of job $pal_job"
  return 1
}

# Seconds to the time limit of this run of the job; false where there is no limit, or the run is over.
pal_left_s() {
  local state left restarts
  read -r state left restarts <<< "$(squeue -h -j "$pal_job" -O State:20,TimeLeft:20,RestartCnt:20)"
  [ "$state ${restarts%% *}" = "RUNNING $pal_requeues" ] || return 1
  [ "$left" != INVALID ] || left=0:0 # the limit is over, which OverTimeLimit allows
  [[ $left =~ ^(([0-9]+)-)?(([0-9]+):)?([0-9]+):([0-9]+)$ ]] || return 1
  echo $((((10#0${BASH_REMATCH[2]} * 24 + 10#0${BASH_REMATCH[4]}) * 60 + 10#${BASH_REMATCH[5]}) * 60 + 10#${BASH_REMATCH[6]}))
}

# The same, if it is so little that Slurm has given notice of it, or will in a moment; else false.
pal_near_s() {
  local left_s
  [ "$pal_before_s" != 0 ] && left_s=$(pal_left_s) && [ "$left_s" -le $((pal_before_s + 65)) ] && echo "$left_s"
}

# Write into the comment how often the job was continued; true once it is there.
pal_note_times() {
  local word="pal:cont=$1;of=$pal_times" comment text try LC_ALL=C
  for try in 1 2 3 4; do
    [ "$try" = 1 ] || command -p sleep 1
    comment=$(pal_comment) || continue
    [[ " $comment " != *" $word "* ]] || return 0
    text=$(pal_put "$comment" "$word")
    [ "${#text}" -le 1000 ] || break
    scontrol update "JobId=$pal_job" "Comment=$text"
  done
  return 1
}

# After a checkpoint: requeue the job if its time limit is near. If it was asked for in order to move the job, that
# comes first; and whoever else requeues the job meanwhile: then this run is over.
pal_continue_perhaps() {
  local left_s comment done=0 text="its comment cannot be read or written" try
  pal_near_s > /dev/null && command -p sleep "$pal_mover_s" && left_s=$(pal_near_s) || return
  [ ! -e "$pal_dir/ended" ] || pal_left_one || return # the script has ended by itself
  if comment=$(pal_comment); then
    [[ ! $comment =~ (^|[[:space:]])pal:cont=([0-9]{1,9})(;|[[:space:]]|$) ]] || done=$((10#${BASH_REMATCH[2]}))
    if [ "$done" -ge "$pal_times" ]; then
      pal_say "saved, and not continued after the time limit: $done of at most $pal_times times are over"
      return
    fi
    if pal_note_times $((done + 1)); then
      pal_say "saved $left_s s before the time limit: requeued, to be continued ($((done + 1)) of at most $pal_times times)"
      for try in 1 2 3 4 5; do
        [ "$try" = 1 ] || command -p sleep 2
        pal_near_s > /dev/null || return
        ! text=$(scontrol requeue "$pal_job" 2>&1) || return
      done
      pal_note_times "$done"
    fi
  fi
  pal_say "saved, but not continued after the time limit: ${text%%$'\n'*}"
}

# Whether process $1 handles signal number $2, or blocks it to wait for it as srun does.
pal_takes() {
  local key value number=$2
  while read -r key value; do
    case $key in SigBlk: | SigCgt:) (((0x$value >> (number - 1)) & 1)) && return 0 ;; esac
  done < "/proc/$1/status"
  return 1
}

# A shell with a trap on EXIT handles every deadly signal, and then dies of it: SIGVTALRM shows that.
pal_may_die() {
  local name=
  read -r name < "/proc/$1/comm"
  [[ $name =~ ^(ba|da|k|z|mk)?sh$ ]] && pal_takes "$1" "$(kill -l VTALRM)"
}

# Send the signal to process $1 if it takes it, else to its descendants that do. Any other would die of it.
pal_tell() {
  local number line pid rest told=1
  number=$(kill -l "$pal_signal")
  if ! pal_may_die "$1" && pal_takes "$1" "$number"; then kill -s "$pal_signal" "$1" && return 0; fi
  for line in /proc/[0-9]*/stat; do
    { read -r rest < "$line"; } || continue
    pid=${rest%% *}
    rest=${rest##*) }
    read -r _ rest _ <<< "$rest"
    [ "$rest" != "$1" ] || ! pal_tell "$pid" || told=0
  done
  [ "$told" = 0 ] || { pal_takes "$1" "$number" && kill -s "$pal_signal" "$1"; }
}

# Whether the script has ended with the status that means: the checkpoint is written.
pal_left_one() { [ -e "$pal_dir/ended" ] && [ "$(< "$pal_dir/ended")" = "$pal_continue" ]; }

# Have a checkpoint written: true once it is there.
pal_write_checkpoint() {
  local until_s=$((SECONDS + pal_limit_s))
  if [ -n "$pal_command" ]; then
    PAL_PAYLOAD_PID=$pal_script command -p timeout -k 5 "$pal_limit_s" /bin/bash -c "$pal_command" 2>&5 5>&- || pal_left_one
    return $? # without a number it would be the status of what the trap interrupted
  fi
  pal_tell "$pal_script" || { pal_say "no process of the job handles SIG$pal_signal: no checkpoint"; return 1; }
  while [ "$SECONDS" -lt "$until_s" ] && [ ! -e "$SLURM_PAL_ACK" ] && [ ! -e "$pal_dir/ended" ]; do
    command -p sleep 0.2
  done
  [ -e "$SLURM_PAL_ACK" ] || pal_left_one
}

# For a subshell: these change what Slurm's commands do.
pal_plain_slurm() { unset "${!SQUEUE_@}" "${!SCONTROL_@}" "${!SCANCEL_@}" SLURM_CLUSTERS; }

# SIGUSR1: in the background, so that the batch shell goes on to hear signals.
pal_checkpoint() {
  trap - INT QUIT
  pal_plain_slurm
  local before left_s
  before=$(pal_ack_in "$(pal_comment)")
  command -p rm -f -- "$SLURM_PAL_ACK"
  if left_s=$(pal_near_s) && [ $((left_s - 20)) -gt "$pal_limit_s" ]; then pal_limit_s=$((left_s - 20)); fi
  if pal_write_checkpoint; then
    pal_acknowledge "" "$before"
    pal_continue_perhaps
  else
    pal_acknowledge ";failed=1" "$before"
    ! pal_near_s > /dev/null || pal_say "no checkpoint before the time limit: the job is not continued after it"
  fi
}

pal_usr1() {
  ! pal_runs "$pal_writer" || return
  pal_checkpoint < /dev/null 3<&- &
  pal_writer=$!
}

# The line about the job's GPUs is made at its start, in the background, so that its end waits for nobody.
pal_look_up() {
  [ "${#pal_note[@]}" != 0 ] || return
  (trap - INT QUIT; pal_plain_slurm; exec "$(command -pv timeout)" -k 5 60 "${pal_note[@]}") > "$pal_dir/note" < /dev/null 3<&- 4<&- 5>&- &
  pal_noter=$!
}

# Show it; at the end of a very short job it may take two more seconds, unless somebody else ends the job.
pal_show_note() {
  local try
  [ -n "$pal_noter" ] || return
  for try in {1..20}; do
    if [ -n "$pal_ending" ] || ! pal_runs "$pal_noter"; then break; fi
    command -p sleep 0.1
  done
  if ! pal_runs "$pal_noter" && { pal_is_missed "$pal_noter" || wait "$pal_noter"; }; then command -p head -n 1 -- "$pal_dir/note"; fi
}

# Run the script once, with the number of the run in its environment; leave its exit status in pal_status. Traps only
# note signals and end `wait`: bash (5.2) loses track of what a trap that interrupted `wait` starts. If the script ends
# at the moment of a signal, a second `wait` knows its status, unless bash has missed the end: it would wait for ever.
pal_run() {
  local name got
  export SLURM_PAL_RUN=$SLURM_JOB_ID.$pal_requeues.$pal_reruns
  [ "$pal_reruns" = 0 ] || export SLURM_RESTART_COUNT=$((pal_requeues + pal_reruns))
  command -p rm -f -- "$pal_dir/ended"
  (trap - INT QUIT; echo "$BASHPID" > "$pal_dir/payload"; [ -z "$pal_set" ] || set "-$pal_set"; [ -z "$pal_failglob" ] || shopt -s failglob; pal_exec "$@") <&3 3<&- 4<&- 2>&5 5>&- &
  pal_script=$!
  while :; do
    if [ -z "$pal_got" ]; then
      if pal_is_missed "$pal_script"; then return; fi
      wait "${pal_got:+none}${pal_got:-$pal_script}" # a signal since the line above: what is no process is not waited for
      pal_status=$?
      [ -n "$pal_got" ] || return
    fi
    got=$pal_got pal_got="" # in one command: a trap between two would be forgotten
    for name in $got; do
      if [ "$name" = USR1 ] && [ -n "$pal_command$pal_signal" ]; then pal_usr1; else pal_forward "$name"; fi
      [ "$name" != TERM ] || { pal_ending=1; pal_ends_perhaps; }
    done
    [ -n "$pal_got" ] || kill -0 "$pal_witness" || pal_stand_witness
  done
}

# Whether the script must run once more: only if it was asked for a checkpoint and ended with pal_continue. Some
# programs do so, since they expect a requeue. If none comes in time, the move was given up, and the script goes on
# from its checkpoint, as it would after the requeue. Any other end is the end of the job.
pal_to_be_continued() {
  local until_s=$((SECONDS + pal_requeue_s))
  pal_left_one && [ -n "$pal_writer" ] && [ -z "$pal_ending" ] || return 1
  while pal_runs "$pal_writer" || [ "$SECONDS" -lt "$until_s" ]; do
    command -p sleep 0.2
    [[ $pal_got != *TERM* ]] || exit 143
    ! pal_runs "$pal_writer" || until_s=$((SECONDS + pal_requeue_s)) # not acknowledged yet
  done
  pal_say "no requeue after the checkpoint: $pal_again"
}

pal_drop() { command -p rm -rf -- "$pal_dir"; }

pal_clean() {
  local pid
  pal_part
  pal_show_note
  for pid in "$pal_witness" "$pal_writer" "$pal_noter"; do ! pal_runs "$pid" || kill "$pid"; done
  pal_drop
}

# End by the signal that has ended the script: Slurm shows that as another exit code than a status above 128.
# The two may also end at once, before the batch shell has looked at its own signal: then the witness is dead.
pal_die_alike() {
  [ "$pal_status" -gt 128 ] || return
  pal_runs "$pal_witness" || pal_died=$((pal_status - 128))
  [ "$pal_status" = $((128 + pal_died)) ] || return
  pal_clean
  trap - EXIT "$pal_died"
  ulimit -c 0 # the script has left its core already
  kill -s "$pal_died" "$$"
  exec /bin/sh -c 'kill -s "$1" "$$"; exit "$2"' sh "$pal_died" "$pal_status" # bash itself never dies of SIGQUIT
}

pal_main() {
  local name
  pal_set=${-//[!euCf]/} # the user may have exported SHELLOPTS, which is for their script
  set +euCf
  pal_failglob="" # the same by BASHOPTS
  if shopt -q failglob; then pal_failglob=1; shopt -u failglob; fi
  pal_writer="" pal_noter="" pal_ending="" pal_died="" pal_status=1 pal_requeues=${SLURM_RESTART_COUNT:-0} pal_reruns=0
  exec 3<&0 5>&2 2> /dev/null
  pal_job=$SLURM_JOB_ID # a task's own number may be that of its array, which means all of them
  [ "$pal_array" = 0 ] || pal_job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
  pal_place || pal_unpack || pal_without_room "$@"
  export SLURM_PAL_ACK=$pal_dir/ack
  pal_stand_witness
  trap pal_clean EXIT
  # Not those that kill nobody: Slurm sends SIGCONT together with others, and of two signals at once `wait` loses one.
  # shellcheck disable=SC2064 # the name is to be expanded now
  for name in $pal_deadly; do trap "pal_got+=' $name'" "$name"; done
  pal_look_up
  pal_join
  while :; do
    pal_run "$@"
    echo "$pal_status" > "$pal_dir/ended"
    pal_to_be_continued || break
    pal_writer="" pal_reruns=$((pal_reruns + 1))
  done
  pal_part
  pal_die_alike
  exit "$pal_status"
}

#@PART@
pal_main "$@"
# == the job's own script ==
