# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2034,SC2154,SC2317 # part of wrapper.sh, where the other variables are
# == palsub --pal-checkpoint transparent: CRIU writes the job's processes to disk, and they go on from there ==
# The script runs in a PID namespace, where its processes have the same numbers on each node. Process 1 there
# (pal_inside) starts or restores it, and writes it to disk when it is asked to. The script's parent (pal_root) is part
# of the image: it alone can know how the script has ended. In the job's folder, which all nodes see: `image.N`
# (complete), `slurm_script`, and small files: `script` (its number), `status` (how it ended), `wanted` (an image is),
# `refused` (why there is none), `written` (it was, and the processes have ended).
pal_images=@FOLDER@ # the site's
pal_criu=@CRIU@
pal_hold=@HOLD@ # 1: a job that cannot be restored is held; else it begins anew
pal_again="it goes on from its image"
pal_cannot=""   # why this node cannot do it
pal_apart=(/usr/bin/unshare --pid --fork --kill-child --mount --propagation slave --mount-proc)
pal_bare=()     # the job's processes get none of the namespace's capabilities
if [ "$EUID" != 0 ]; then
  pal_apart+=(--user --map-current-user --keep-caps)
  pal_bare=(/usr/bin/setpriv --ambient-caps=-all --inh-caps=-all)
fi

# The user's folder in that of the site, where everybody may make one.
pal_own_folder() {
  pal_own=$pal_images/pal.$EUID
  [ -d "$pal_own" ] || command -p mkdir -m 700 -- "$pal_own"
  [ -d "$pal_own" ] && [ -O "$pal_own" ] && [ ! -L "$pal_own" ] && command -p chmod 700 -- "$pal_own"
}

# Folders of this user's jobs that Slurm has forgotten.
pal_sweep() {
  local known folder job
  known=$(pal_plain_slurm; squeue -h --me -r -t all -o %i) || return
  for folder in "$1".*; do
    job=${folder##*.}
    [[ $'\n'$known$'\n' == *$'\n'"$job"$'\n'* ]] || command -p rm -rf -- "$folder"
  done
}

# This run ends, and the job waits for its user.
pal_hold_job() {
  pal_say "the job is held, and its image is kept: scontrol release $pal_job"
  (pal_plain_slurm; scontrol requeuehold "$pal_job" >&5 2>&5)
  exit 1
}

pal_needs_room() { true; }

pal_place() {
  local cluster=${SLURM_CLUSTER_NAME:-slurm}
  if ! pal_own_folder; then
    pal_cannot="$pal_images/pal.$EUID on ${HOSTNAME:-this node} is no folder of yours"
    pal_say "no transparent checkpoints: $pal_cannot"
    if [ "$pal_hold" = 1 ] && [ "$pal_requeues" != 0 ]; then pal_hold_job; fi # its image may be there
    return 1
  fi
  pal_dir=$pal_own/${cluster//[^A-Za-z0-9_-]/_}.$pal_job
  [ "$pal_requeues" != 0 ] || command -p rm -rf -- "$pal_dir"
  if [ ! -x "$pal_criu" ]; then
    pal_cannot="there is no $pal_criu on ${HOSTNAME:-this node}"
  elif ! "${pal_apart[@]}" /usr/bin/env --default-signal=HUP /usr/bin/setsid "${pal_bare[@]}" /bin/true; then
    pal_cannot="user and PID namespaces cannot be made on ${HOSTNAME:-this node}, or its system is too old"
  elif ! { [ -d "$pal_dir" ] || command -p mkdir -m 700 -- "$pal_dir"; } ||
    ! command -p tail -n "+$pal_first" "$0" > "$pal_dir/slurm_script"; then
    pal_cannot="$pal_dir cannot be written"
  fi
  if [ -n "$pal_cannot" ]; then
    pal_say "no transparent checkpoints: $pal_cannot"
    compgen -G "$pal_dir/image.*" > /dev/null || return 1
    [ "$pal_hold" != 1 ] || pal_hold_job
    pal_say "the job begins anew"
    command -p rm -rf -- "$pal_dir"
    return 1
  fi
  pal_sweep "${pal_dir%."$pal_job"}"
  return 0
}

pal_exec() {
  local name functions="pal_say pal_plain_slurm pal_hold_job pal_inside pal_outputs pal_restore pal_reason pal_begin pal_root"
  functions+=" pal_tree pal_unfit pal_files pal_write"
  [ -z "$pal_cannot" ] || exec "${pal_interpreter[@]}" "$pal_dir/slurm_script" "$@"
  command -p rm -f -- "$pal_dir"/{status,wanted,refused,written}
  for name in $pal_deadly; do trap "" "$name"; done # unshare would die of them, and everything with it
  # shellcheck disable=SC2086 # words on purpose
  exec "${pal_apart[@]}" /usr/bin/env --default-signal="${pal_deadly// /,}" /bin/bash -p -c \
    "$(declare -p pal_deadly pal_dir pal_criu pal_hold pal_job pal_images pal_bare; declare -f $functions); pal_inside \"\$@\"" \
    pal "${pal_interpreter[@]}" "$pal_dir/slurm_script" "$@"
}

# -- inside --

# Process 1: how the script has ended is how this ends; 85 when the processes are on disk.
pal_inside() {
  local fd status keep="-all,+checkpoint_restore,+sys_ptrace"
  pal_wanted=""
  pal_as=() pal_mode=()
  if [ "$EUID" != 0 ]; then # CRIU needs these two of what belongs to the namespace
    pal_as=(/usr/bin/setpriv --ambient-caps="$keep" --inh-caps="$keep")
    pal_mode=(--unprivileged)
  fi
  for fd in /proc/1/fd/*; do
    fd=${fd##*/}
    [ "$fd" -le 2 ] || eval "exec $fd>&-"
  done
  pal_outputs
  exec 4<> <(:) 5>&2 2> /dev/null
  trap 'pal_wanted=1' USR1
  pal_restore || pal_begin "$@"
  while :; do
    wait "$pal_child"
    status=$?
    if [ -n "$pal_wanted" ]; then
      pal_wanted=""
      [ ! -e "$pal_dir/wanted" ] || pal_write
    elif ! kill -0 "$pal_child"; then
      break
    fi
  done
  if [ -e "$pal_dir/status" ]; then
    read -r status < "$pal_dir/status"
  elif [ "$pal_image" != 0 ] && [ "$status" = 0 ]; then
    status=137 # CRIU ends with 0 also where somebody has killed the processes that it has restored
  fi
  exit "$status"
}

# The job's own files are opened anew by their names: CRIU knows files only of mounts of this namespace.
pal_outputs() {
  local path
  path=$(command -p readlink /proc/1/fd/0)
  [ ! "$path" -ef /proc/1/fd/0 ] || exec < "$path"
  pal_output=$(command -p readlink /proc/1/fd/1) pal_errors=$(command -p readlink /proc/1/fd/2)
  [ ! "$pal_output" -ef /proc/1/fd/1 ] || exec >> "$pal_output"
  if [ "$pal_errors" = "$pal_output" ]; then exec 2>&1; elif [ "$pal_errors" -ef /proc/1/fd/2 ]; then exec 2>> "$pal_errors"; fi
}

# Go on from the newest image; false if there is none, or it cannot be restored. CRIU itself gets a number below 300, where
# none of the job's are; when it has made the first process, the next numbers are those after all that were given.
pal_restore() {
  local image files=() why begun=""
  pal_image=0
  for image in "$pal_dir"/image.*; do
    image=${image##*.}
    [[ ! $image =~ ^[0-9]+$ ]] || [ "$image" -le "$pal_image" ] || pal_image=$image
  done
  [ "$pal_image" != 0 ] || return 1
  image=$pal_dir/image.$pal_image
  command -p mkdir -p -m 700 -- "${TMPDIR:-/tmp}"
  mapfile -t files < "$image/outputs"
  [[ ${files[0]} == /dev/* ]] || set -- --inherit-fd "fd[1]:${files[0]#/}"
  [ "${files[1]}" = "${files[0]}" ] || [[ ${files[1]} == /dev/* ]] || set -- "$@" --inherit-fd "fd[5]:${files[1]#/}"
  command -p rm -f -- "$image/pid"
  "${pal_as[@]}" "$pal_criu" restore --images-dir "$image" --log-file restore.log -v1 "${pal_mode[@]}" \
    --manage-cgroups=ignore --cpu-cap=ins --file-locks --pidfile "$image/pid" "$@" < /dev/null 4<&- &
  pal_child=$! pal_root_pid=$(< "$image/root")
  while [ ! -e "$image/pid" ] && kill -0 "$pal_child"; do
    if [ -z "$begun" ] && [ -e "/proc/$pal_root_pid" ]; then
      begun=1
      echo "$(< "$image/last_pid")" > /proc/sys/kernel/ns_last_pid
    fi
    read -r -t 0.01 -u 4 # a pause that takes no number
  done
  [ ! -e "$image/pid" ] || return 0
  why=$(pal_reason "$image/restore.log")
  why="the image cannot be restored on $HOSTNAME: ${why:-$pal_criu failed}"
  if [ "$pal_hold" = 1 ]; then
    pal_say "$why"
    pal_hold_job
  fi
  pal_say "$why; the job begins anew"
  command -p rm -rf -- "$image"
  return 1
}

# The first error in a log of CRIU's, that aside which it has each time where it may not have more files open.
pal_reason() { command -p sed -n '/rlimit: /d; /Error/{p;q}' "$1"; }

pal_begin() {
  command -p rm -f -- "$pal_dir/status"
  echo 299 > /proc/sys/kernel/ns_last_pid
  /usr/bin/setsid "${pal_bare[@]}" /bin/bash -p -c "$(declare -p pal_deadly; declare -f pal_root); pal_root \"\$@\"" pal "$pal_dir" "$@" <&0 2>&5 4<&- 5>&- &
  pal_child=$! pal_root_pid=$!
}

# The first process of the image.
pal_root() {
  local folder=$1
  shift
  # shellcheck disable=SC2086 # words on purpose
  trap '' $pal_deadly
  # shellcheck disable=SC2086
  (trap - $pal_deadly; exec "$@") <&0 &
  echo "$!" > "$folder/script"
  wait "$!"
  echo "$?" > "$folder/status"
}

# The processes of the script, in pal_pids; false, with why in pal_why, where one has left them.
pal_tree() {
  local line pid rest state parent more=1
  local -A parents=() inside=([$pal_root_pid]=1)
  for line in /proc/[0-9]*/stat; do
    read -r rest < "$line" || continue
    pid=${rest%% *}
    read -r state parent _ <<< "${rest##*) }"
    [ "$state" = Z ] || parents[$pid]=$parent
  done
  while [ "$more" = 1 ]; do
    more=0
    for pid in "${!parents[@]}"; do
      if [ -z "${inside[$pid]}" ] && [ -n "${inside[${parents[$pid]}]}" ]; then inside[$pid]=1 more=1; fi
    done
  done
  pal_pids=("${!inside[@]}")
  for pid in "${!parents[@]}"; do
    if [ "$pid" != 1 ] && [ "$pid" != "$pal_child" ] && [ -z "${inside[$pid]}" ] && [ -e "/proc/$pid/stat" ]; then
      pal_why="process $pid ($(< "/proc/$pid/comm")) has outlived the one that started it, and is not the script's any more"
      return 1
    fi
  done
}

# A file of this user that is open or mapped, and on a disk of this node only, or a device; in pal_why.
pal_files() {
  local kind owner device path shared
  shared=$(command -p stat -c %d -- "$pal_dir")
  while read -r kind owner device path; do
    case $kind in
      [bc]*)
        path=$(command -p readlink -- "$path") || continue # closed since
        case $path in
          /dev/null | /dev/zero | /dev/full | /dev/random | /dev/urandom) ;;
          /dev/nvidia*) command -v cuda-checkpoint > /dev/null || pal_why="$path is open, and there is no cuda-checkpoint" ;;
          *) pal_why="device $path is open" ;;
        esac
        ;;
      [d-]*)
        if [ "$owner" != "$EUID" ] || [ "$device" = "$shared" ]; then continue; fi
        [[ $path != /proc/* ]] || path=$(command -p readlink -- "$path") || continue
        case $path in *" (deleted)" | "$pal_output" | "$pal_errors") continue ;; esac
        case $(command -p stat -f -c %T -- "$path") in
          ext* | xfs | btrfs | tmpfs | ramfs | zfs | overlayfs | f2fs) pal_why="$path is on this node only" ;;
        esac
        ;;
    esac
    [ -z "$pal_why" ] || return
  done < <(
    open=() mapped=()
    for pid in "${pal_pids[@]}"; do
      open+=("/proc/$pid/cwd" "/proc/$pid"/fd/*)
      mapped+=("/proc/$pid/maps")
    done
    command -p stat -L --printf '%A %u %d %n\n' -- "${open[@]}"
    [ "$EUID" != 0 ] || exit # to whom the system's libraries belong, too
    command -p sed -nE 's/^([^ ]+ +){4}[1-9][0-9]* +\//\//p' "${mapped[@]}" | command -p sort -u |
      command -p xargs -r -d '\n' stat -L --printf '%A %u %d %n\n' --
  )
}

# Why there can be no image now, in pal_why.
pal_unfit() {
  local pid key value kib=0 free_kib said
  pal_why=""
  pal_tree && pal_files
  [ -z "$pal_why" ] || return
  for pid in "${pal_pids[@]}"; do
    while read -r key value _; do
      case $key in VmRSS: | VmSwap:) kib=$((kib + value)) ;; esac
    done < "/proc/$pid/status"
  done
  free_kib=$(command -p df --output=avail -k -- "$pal_dir" | command -p tail -n 1)
  if [ "$free_kib" -lt "$kib" ]; then
    pal_why="$((kib / 1024)) MiB are needed in $pal_images, and $((free_kib / 1024)) are free"
  elif ! said=$(command -p fallocate -l "${kib}KiB" "$pal_dir/room" 2>&1) && [[ $said != *"not supported"* ]]; then
    pal_why="$((kib / 1024)) MiB are needed in $pal_images: ${said##*: }" # as where there is a quota
  fi
  command -p rm -f -- "$pal_dir/room"
}

# Write an image: then everything here ends. Else the processes go on as if nothing had been, and `refused` says why.
pal_write() {
  local fresh=$pal_dir/image.new final=$pal_dir/image.$((pal_image + 1)) LC_ALL=C
  command -p rm -rf -- "$pal_dir/wanted" "$fresh"
  pal_unfit
  if [ -z "$pal_why" ]; then
    command -p mkdir -m 700 -- "$fresh"
    if ! (umask 077; exec "${pal_as[@]}" "$pal_criu" dump --tree "$pal_root_pid" --images-dir "$fresh" \
      --log-file dump.log -v1 "${pal_mode[@]}" --manage-cgroups=ignore --cpu-cap=ins --file-locks --ghost-limit 64M \
      --leave-stopped < /dev/null > /dev/null); then
      pal_why=$(pal_reason "$fresh/dump.log")
      pal_why=${pal_why:-$pal_criu failed}
    elif (umask 077 && printf '%s\n' "$pal_output" "$pal_errors" > "$fresh/outputs" && echo "$pal_root_pid" > "$fresh/root" &&
      command -p cat /proc/sys/kernel/ns_last_pid > "$fresh/last_pid" && command -p sync -- "$fresh"/*) &&
      : > "$pal_dir/written" && command -p mv -T -- "$fresh" "$final"; then
      [ "$pal_image" = 0 ] || command -p rm -rf -- "$pal_dir/image.$pal_image"
      exit 85
    else
      command -p rm -f -- "$pal_dir/written"
      kill -CONT "${pal_pids[@]}"
      pal_why="$fresh cannot be written to disk"
    fi
    command -p rm -rf -- "$fresh"
  fi
  echo "$pal_why" > "$pal_dir/refused.new"
  command -p mv -- "$pal_dir/refused.new" "$pal_dir/refused"
}

# -- outside --

pal_first_inside() { command -p cat "/proc/$pal_script/task/$pal_script/children"; }

# The number that the script has outside.
pal_target() {
  local inner place first
  [ -z "$pal_cannot" ] || { echo "$pal_script"; return; }
  first=$(pal_first_inside)
  read -r inner < "$pal_dir/script"
  for place in $(command -p grep -lE "^NSpid:.*[[:space:]]$inner\$" /proc/[0-9]*/status); do
    place=${place%/status}
    [ ! "$place/ns/pid" -ef "/proc/${first% }/ns/pid" ] || echo "${place#/proc/}"
  done
}

pal_left_one() { [ -e "$pal_dir/ended" ] && [ -e "$pal_dir/written" ]; }

pal_write_checkpoint() {
  local until_s=$((SECONDS + pal_limit_s)) first
  [ -z "$pal_cannot" ] || { pal_say "no checkpoint: $pal_cannot"; return 1; }
  first=$(pal_first_inside)
  command -p rm -f -- "$pal_dir/refused"
  : > "$pal_dir/wanted"
  while [ "$SECONDS" -lt "$until_s" ] && [ ! -e "$pal_dir/ended" ] && [ ! -e "$pal_dir/refused" ]; do
    [ ! -e "$pal_dir/wanted" ] || kill -s USR1 "${first% }" # once may be in the moment before it waits
    command -p sleep 0.2
  done
  command -p rm -f -- "$pal_dir/wanted"
  [ ! -e "$pal_dir/refused" ] || pal_say "no checkpoint: $(< "$pal_dir/refused")"
  pal_left_one
}

# The images stay for another run, which comes perhaps when the job was told to end.
pal_drop() {
  if [ -n "$pal_cannot" ]; then
    command -p rm -rf -- "$pal_dir"
  elif [ -e "$pal_dir/status" ] && [ -z "$pal_ending" ]; then
    command -p rm -rf -- "$pal_dir"
  fi
}
