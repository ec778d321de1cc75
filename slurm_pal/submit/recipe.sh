# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2154 # what stands before this text sets recipe_name and others
# == Has a known program save, as its recipe says; run by the wrapper beside the job's script ==
# A program that ends when it has saved must not end the job: meanwhile the script's shells are stopped, and afterwards
# SIGURG lets the script exit with 85 (palsub has put a trap for it before the first command). A shell runs that trap
# before its next command. A shell that reads what the program writes goes on: else its last lines would be lost, and the
# program might wait for ever for room in the pipe. It does not see the end of its input, so it comes to no later command.
# If the program takes longer than recipe_limit_s, somebody stays to do so when it has ended:
# no checkpoint is reported, and the script is run again where it is.
PATH=/usr/bin:/bin:$PATH
unset -f grep head kill readlink rm sed sleep stat # the user may have exported functions of these names
recipe_limit_s=100 # less than the wrapper allows
recipe_drain_s=30  # for those that read what the program has written
recipe_mark=$SLURM_PAL_ACK.recipe

recipe_say() { echo "palsub: recipe $recipe_name: $1" >&2; }

# The words of process $1 in recipe_words, the name of its program in recipe_own.
recipe_read() {
  recipe_words=()
  { mapfile -d '' -t recipe_words < "/proc/$1/cmdline"; } 2> /dev/null || return 1
  recipe_own=${recipe_words[0]##*/}
  [ -n "$recipe_own" ]
}

recipe_alive() {
  local rest
  { read -r rest < "/proc/$1/stat"; } 2> /dev/null || return 1
  rest=${rest##*) }
  [[ $rest != [ZX]* ]]
}

recipe_handles() {
  local key value
  while read -r key value; do
    [ "$key" != SigCgt: ] || { (((0x${value: -8} >> ($2 - 1)) & 1)) && return 0; }
  done 2> /dev/null < "/proc/$1/status"
  return 1
}

recipe_is_shell() {
  local name=
  { read -r name < "/proc/$1/comm"; } 2> /dev/null
  [[ $name =~ ^(ba|da|k|z|mk|a)?sh$ ]]
}

# Whether the process that was read last runs one of the recipe's commands. A recipe without commands is for any
# program that takes its signal, and that is neither a shell nor of those that start programs or belong to us.
recipe_is_program() {
  local name action
  if [ -z "$recipe_commands" ]; then
    [[ ! $recipe_own =~ ^(slurmstepd.*|srun|mpirun|mpiexec.*|orte.*|prte.*|hydra.*|.*sh|sleep|timeout|tail|palsub)$ ]] || return 1
    [[ " ${recipe_words[*]} " != *slurm_pal* ]] || return 1
    [ -z "$recipe_signal" ] || recipe_handles "$1" "$(kill -l "$recipe_signal")"
    return
  fi
  while IFS=' ' read -r name action; do
    # shellcheck disable=SC2053 # a name may be a pattern
    [[ $recipe_own == $name ]] && { [ -z "$action" ] || [ "${recipe_words[1]}" = "$action" ]; } && return 0
  done <<< "$recipe_commands"
  return 1
}

# The processes of this run on this node that the recipe is about, in recipe_pids: they have what the wrapper exports.
recipe_find() {
  local place pid
  recipe_pids=()
  while IFS= read -r -d '' place; do
    pid=${place#/proc/}
    pid=${pid%/environ}
    [ "$pid" != "$$" ] && recipe_read "$pid" && recipe_alive "$pid" && recipe_is_program "$pid" && recipe_pids+=("$pid")
  done < <(grep -lZzxF "SLURM_PAL_ACK=$SLURM_PAL_ACK" /proc/[0-9]*/environ 2> /dev/null)
  [ "${#recipe_pids[@]}" != 0 ]
}

# The processes below process $1: shells in recipe_shells, others in recipe_others; recipe_parents has their parents.
recipe_find_below() {
  local line rest pid
  for line in /proc/[0-9]*/stat; do
    { read -r rest < "$line"; } 2> /dev/null || continue
    pid=${rest%% *}
    rest=${rest##*) }
    read -r _ rest _ <<< "$rest"
    [ "$rest" = "$1" ] || continue
    recipe_parents[$pid]=$1
    if recipe_is_shell "$pid"; then recipe_shells+=("$pid"); else recipe_others+=("$pid"); fi
    recipe_find_below "$pid"
  done
}

# Whether process $2 reads from a pipe to which process $1 writes.
recipe_feeds() {
  [ -p "/proc/$2/fd/0" ] && { [ "/proc/$1/fd/1" -ef "/proc/$2/fd/0" ] || [ "/proc/$1/fd/2" -ef "/proc/$2/fd/0" ]; }
}

# Who reads what the programs write, also by way of others: shells in recipe_readers, with their pipes, kept open, in
# recipe_pipes; others, which end when their input does, in recipe_sinks. All other shells, in recipe_halted, are to be
# stopped: also one that reads something else.
recipe_find_readers() {
  local pid other pipe found=1
  local -A writes=() # process -> 1: its output ends with the programs; 2: it comes by way of a shell
  recipe_readers=() recipe_pipes=() recipe_sinks=() recipe_halted=()
  for pid in "${recipe_pids[@]}"; do
    while [ -n "$pid" ]; do
      recipe_is_shell "$pid" || writes[$pid]=1
      pid=${recipe_parents[$pid]-}
    done
  done
  for pid in "${recipe_others[@]}"; do
    ! recipe_read "$pid" || [[ ! $recipe_own =~ ^(srun|mpirun|mpiexec.*)$ ]] || writes[$pid]=1 # of other sessions
  done
  while [ -n "$found" ]; do
    found=
    for pid in "$PAL_PAYLOAD_PID" "${recipe_shells[@]}" "${recipe_others[@]}"; do
      [ -z "${writes[$pid]-}" ] || continue
      for other in "${!writes[@]}"; do
        recipe_feeds "$other" "$pid" || continue
        found=1 writes[$pid]=${writes[$other]}
        if recipe_is_shell "$pid"; then
          writes[$pid]=2
          { exec {pipe}<> "/proc/$pid/fd/0"; } 2> /dev/null && recipe_readers+=("$pid") recipe_pipes+=("$pipe")
        elif [ "${writes[$pid]}" = 1 ] && ! recipe_feeds "$PAL_PAYLOAD_PID" "$pid"; then
          recipe_sinks+=("$pid") # not where all of the script's output goes: that ends after the script
        fi
        break
      done
    done
  done
  for pid in "$PAL_PAYLOAD_PID" "${recipe_shells[@]}"; do
    [[ " ${recipe_readers[*]} " == *" $pid "* ]] || recipe_halted+=("$pid")
  done
}

# Whether a shell, or a process below it, is at work, and not waiting for more input.
recipe_is_busy() {
  local recipe_shells=() recipe_others=() rest
  local -A recipe_parents
  { read -r rest < "/proc/$1/stat"; } 2> /dev/null || return 1
  rest=${rest##*) }
  [[ $rest == S* ]] || return 0
  [ "$1" != "$PAL_PAYLOAD_PID" ] || return 1 # others may be below it
  recipe_find_below "$1"
  [ "${#recipe_shells[@]}${#recipe_others[@]}" != 00 ]
}

# Until all is read that the program has written.
recipe_drain() {
  local until_s=$((SECONDS + recipe_drain_s)) quiet=0 at pid
  while [ "$quiet" -lt 2 ] && [ "$SECONDS" -lt "$until_s" ]; do
    sleep 0.1
    quiet=$((quiet + 1))
    for pid in "${recipe_sinks[@]}"; do ! recipe_alive "$pid" || quiet=0; done
    for at in "${!recipe_readers[@]}"; do
      ! read -r -t 0 -u "${recipe_pipes[at]}" && ! recipe_is_busy "${recipe_readers[at]}" || quiet=0
    done
  done
}

# The file that the program reads: after an option, after "<", or always the same.
recipe_input() {
  local option at path
  for option in $recipe_inputs; do
    case $option in
      "<") path=/proc/$1/fd/0 ;;
      -*)
        path=""
        for ((at = 1; at < ${#recipe_words[@]} - 1; at++)); do
          [ "${recipe_words[at]}" != "$option" ] || path=${recipe_words[at + 1]}
        done
        ;;
      *) path=$option ;;
    esac
    [ -z "$path" ] || [[ $path == /* ]] || path=$recipe_folder/$path
    [ ! -f "$path" ] || { echo "$path"; return; }
  done
}

# $2 with {-option} replaced by what follows it on the command line of process $1, {@key:default} by what its input
# says, {name} by the user's own word; false where there is no such option.
recipe_filled() {
  local text=$2 part value at input
  while [[ $text =~ \{([^{}]*)\} ]]; do
    part=${BASH_REMATCH[1]} value=""
    case $part in
      name) value=$recipe_file_name ;;
      -*)
        for ((at = 1; at < ${#recipe_words[@]} - 1; at++)); do
          [ "${recipe_words[at]}" != "$part" ] || value=${recipe_words[at + 1]}
        done
        [ -n "$value" ] || return 1
        ;;
      @*)
        input=$(recipe_input "$1")
        part=${part#@}
        [ -z "$input" ] || value=$(sed -nE "/^[[:space:]]*[!#]/d; s/.*\b${part%%:*}[[:space:]]*=[[:space:]]*['\"]?([^'\", ]+).*/\1/Ip" "$input" | head -n 1)
        value=${value:-${part#*:}}
        ;;
    esac
    text=${text/"{${BASH_REMATCH[1]}}"/$value}
  done
  [[ $text == /* ]] || text=$recipe_folder/$text
  echo "$text"
}

# What is known of the files that hold a checkpoint: it changes when one is written.
recipe_saved() {
  local pattern path
  while IFS= read -r pattern; do
    [ -n "$pattern" ] || continue
    pattern=$(recipe_filled "${recipe_pids[0]}" "$pattern") || continue
    while IFS= read -r path; do stat -Lc '%n %i %s %.9Y' -- "$path"; done < <(compgen -G "$pattern")
  done <<< "$recipe_saves" 2> /dev/null
}

recipe_look() {
  recipe_read "${recipe_pids[0]}"
  recipe_folder=$(readlink "/proc/${recipe_pids[0]}/cwd") || recipe_folder=$PWD
}

# Until the next checkpoint of a program that goes on: seen, and no longer growing.
recipe_wait_for_save() {
  local before fresh
  recipe_look
  before=$(recipe_saved)
  while [ "$SECONDS" -lt "$recipe_limit_s" ]; do
    sleep 1
    recipe_alive "${recipe_pids[0]}" || { recipe_say "the program ended while its next checkpoint was waited for"; return 1; }
    fresh=$(recipe_saved | grep -vxF -e "$before")
    if [ -n "$fresh" ]; then
      sleep 1
      ! recipe_saved | grep -qxF -e "$fresh" || return 0 # one of those files has not changed again
    fi
  done
  recipe_say "no checkpoint within $recipe_limit_s s; files looked at: ${recipe_saves//$'\n'/, }"
  return 1
}

recipe_any_alive() {
  local pid
  for pid in "${recipe_pids[@]}"; do ! recipe_alive "$pid" || return 0; done
  return 1
}

# The program has ended: let the script exit with 85.
recipe_end_script() {
  local pid
  [ -z "$recipe_path" ] || rm -f -- "$recipe_path"
  for pid in "${recipe_halted[@]}"; do [ "$pid" = "$PAL_PAYLOAD_PID" ] || kill -KILL "$pid"; done
  [ "${#recipe_readers[@]}${#recipe_sinks[@]}" = 00 ] || recipe_drain
  for pid in "${recipe_readers[@]}"; do [ "$pid" = "$PAL_PAYLOAD_PID" ] || kill -KILL "$pid"; done
  kill -URG "$PAL_PAYLOAD_PID"
  kill -CONT "$PAL_PAYLOAD_PID"
} 2> /dev/null

recipe_stop() {
  local before
  if ! recipe_is_shell "$PAL_PAYLOAD_PID" || ! recipe_handles "$PAL_PAYLOAD_PID" "$(kill -l URG)"; then
    recipe_say "the script's shell cannot be told to exit: it has another trap for SIGURG, or exec"
    return 1
  fi
  recipe_shells=() recipe_others=()
  declare -gA recipe_parents=()
  recipe_find_below "$PAL_PAYLOAD_PID"
  recipe_find_readers
  [ "${#recipe_halted[@]}" = 0 ] || kill -STOP "${recipe_halted[@]}" 2> /dev/null
  if ! recipe_any_alive; then # it has ended just now, by itself
    kill -CONT "$PAL_PAYLOAD_PID" "${recipe_halted[@]}" 2> /dev/null
    recipe_say "the program has ended"
    return 1
  fi
  recipe_look
  before=$(recipe_saved)
  recipe_path=""
  if [ -n "$recipe_file" ]; then
    recipe_path=$(recipe_filled "${recipe_pids[0]}" "$recipe_file")
    printf '%s' "${recipe_content:+$recipe_content$'\n'}" > "$recipe_path" || {
      kill -CONT "$PAL_PAYLOAD_PID" "${recipe_halted[@]}" 2> /dev/null
      recipe_say "$recipe_path cannot be written"
      return 1
    }
  else
    kill -s "$recipe_signal" "${recipe_pids[@]}"
  fi
  while recipe_any_alive; do
    if [ "$SECONDS" -ge "$recipe_limit_s" ]; then
      (
        while recipe_any_alive; do sleep 1; done
        recipe_end_script
      ) < /dev/null > /dev/null 2>&1 &
      echo "$!" > "$recipe_mark"
      recipe_say "the program has not ended within $recipe_limit_s s; when it has, the script is run again"
      return 1
    fi
    sleep 0.2
  done
  [ -z "$recipe_saves" ] || [ "$(recipe_saved)" != "$before" ] || recipe_say "the program has ended, but no new checkpoint is seen"
  recipe_end_script
}

recipe_main() {
  local waiter=
  SECONDS=0
  [ ! -e "$recipe_mark" ] || read -r waiter < "$recipe_mark"
  if [ -n "$waiter" ] && kill -0 "$waiter" 2> /dev/null; then # it was asked before, and has not ended yet
    while kill -0 "$waiter" 2> /dev/null && [ "$SECONDS" -lt "$recipe_limit_s" ]; do sleep 0.5; done
    ! kill -0 "$waiter" 2> /dev/null
    return
  fi
  recipe_find || { recipe_say "its program does not run on this node now"; return 1; }
  if [ -n "$recipe_file$recipe_signal" ]; then recipe_stop; else recipe_wait_for_save; fi
}

recipe_main
