# SPDX-License-Identifier: MIT
# shellcheck shell=sh
# What a job of a trial does: it takes the time that the GPUs given to it need, by the table of true slowdowns.
# The job's own script sets these, and then reads this file:
#   number                 its place in the trace, which names its files
#   work, limit            its time on median GPUs, and its time limit
#   penalty                factor where its GPUs span nodes
#   column                 of the table: the sensitivity class
#   cost                   least time from a checkpoint until the job works again
#   every                  work between two checkpoints that it writes by itself, 0: it writes none
#   again                  time from a start after the first one until the job works
#   folder                 of the arm: table, jobs/ (what happened), saved/ (checkpoints)
# Times are hundredths of a second of the lab, moments count from the boot (proc_uptime(5)): reading them costs no
# process. One awk and one sleep: a trace has many jobs that last a second or two.
# shellcheck disable=SC2154 # see above

clock() {
  read -r now rest < /proc/uptime
  now=${now%.*}${now#*.}
}

note() { echo "$*" >> "$folder/jobs/$number"; }

# Where the GPUs are: of one node from the environment; a job on several nodes sees only the first node's there.
given() {
  if [ "$SLURM_JOB_NUM_NODES" = 1 ]; then
    echo "Nodes=$SLURMD_NODENAME GRES=gpu:(IDX:$SLURM_JOB_GPUS)"
  else
    scontrol show job -d -o "$SLURM_JOB_ID"
  fi
}

# "HUNDREDTHS FACTOR PLACES": the run time here, slowdown x locality, and node:indexes joined by +.
measured() {
  given | awk -v table="$folder/table" -v column="$column" -v work="$work" -v penalty="$penalty" '
    function expand(text, into,   first, parts, range, count, i, k, last) {  # n[0-2,5] or n4; the number of names
      count = 0
      if ((first = index(text, "[")) == 0) { into[1] = text; return 1 }
      last = split(substr(text, first + 1, length(text) - first - 1), parts, ",")
      for (i = 1; i <= last; i++) {
        if (split(parts[i], range, "-") == 1) range[2] = range[1]
        for (k = range[1] + 0; k <= range[2] + 0; k++) into[++count] = substr(text, 1, first - 1) k
      }
      return count
    }
    BEGIN { while ((getline line < table) > 0) { split(line, cell, " "); slow[cell[1] ":" cell[2]] = cell[column] } }
    {
      for (f = 1; f <= NF; f++) {
        if ($f ~ /^Nodes=/) nodes = substr($f, 7)
        if ($f !~ /^GRES=gpu/ || !match($f, /IDX:[0-9,-]+/)) continue
        indexes = substr($f, RSTART + 4, RLENGTH - 4)
        n = expand(nodes, name)
        m = expand("[" indexes "]", gpu)
        for (i = 1; i <= n; i++) {
          held++
          places = places (places == "" ? "" : "+") name[i] ":" indexes
          for (k = 1; k <= m; k++) if (slow[name[i] ":" gpu[k]] > worst) worst = slow[name[i] ":" gpu[k]]
        }
      }
    }
    END {
      factor = worst * (held > 1 ? penalty : 1)
      printf "%d %.6f %s\n", work * factor + 0.5, factor, places
    }'
}

# SIGUSR1: write down how much is done, in millionths, and when; then say so to whoever asked.
save() {
  clock
  [ "$now" -lt "$from" ] || done_share=$((share + (now - from) * 1000000 / total))
  echo "$done_share $now" > "$folder/saved/$number"
  best=$done_share
  [ -z "$SLURM_PAL_ACK" ] || : > "$SLURM_PAL_ACK"
}

# What the last checkpoint has that it wrote by itself, where that is more than it was asked for.
keep() {
  [ "$now" -lt "$from" ] || done_share=$((share + (now - from) * 1000000 / total))
  kept=$((done_share * total / 1000000 / every * every * 1000000 / total))
  [ "$kept" -le "$best" ] || echo "$kept $((now - cost))" > "$folder/saved/$number"
}

leave() {
  clock
  [ "$every" = 0 ] || keep
  note "stop $now"
  kill "$sleeper" 2> /dev/null
  exit 143
}

# Sleep until the moment $1; a signal only interrupts it.
sleep_until() {
  while clock; [ "$now" -lt "$1" ]; do
    rest=$(($1 - now + 100))
    sleep "$((rest / 100 - 1)).${rest#"${rest%??}"}" &
    sleeper=$!
    wait "$sleeper"
    kill "$sleeper" 2> /dev/null
  done
}

sleeper='' share=0 saved=0
clock
started=$now
# shellcheck disable=SC2046 # three words
set -- $(measured)
total=$1 from=$started
if [ "${total:-0}" -le 0 ]; then
  note "lost $now"
  exit 1
fi
if [ -r "$folder/saved/$number" ]; then
  read -r share saved < "$folder/saved/$number"
  [ $((saved + cost)) -le "$from" ] || from=$((saved + cost))
fi
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || [ $((started + again)) -le "$from" ] || from=$((started + again))
done_share=$share best=$share
ends=$((from + total - total * share / 1000000)) word=end
[ "$ends" -le $((started + limit)) ] || { ends=$((started + limit)); word=timeout; }
trap save USR1
trap leave TERM
note "start $started $2 $3"
sleep_until "$ends"
note "$word $now"
