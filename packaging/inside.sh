# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# What packaging/test.sh and packaging/systemd.sh do inside a fresh root directory. They source tests/roots.sh, too.

# apt in a fresh root, and a user.
begin() {
    # The mirror may be a snapshot, whose signed lists have an end date that has passed.
    apt-get update -qq -o Acquire::Check-Valid-Until=false
    install_quietly python3 libstdc++6
    useradd --create-home --shell /bin/bash ada
    cd /packages || exit
}

install_quietly() {
    local code=0
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/tmp/apt 2>&1 || code=$?
    [ "$code" -eq 0 ] || { cat /tmp/apt && die "apt-get install $* failed"; }
}

# usage: listing [PATH ...]: every file with its kind, mode, owner and target, and the checksums of those in /etc. Not
# what is below PATH, nor a user's home, which is the user's.
listing() {
    local path left_out=(-path /packages -o -path /home)
    for path in "$@"; do
        left_out+=(-o -path "$path")
    done
    find / -xdev \( "${left_out[@]}" \) -prune -o -printf '%p %y %m %u:%g %l\n' | LC_ALL=C sort
    find /etc -type f -exec sha256sum {} + | LC_ALL=C sort -k 2
}

# usage: nothing_left LISTING HOW [PATH ...]: `listing PATH ...` says what LISTING does.
nothing_left() {
    listing "${@:3}" >/tmp/after
    diff "$1" /tmp/after || die "the packages have left something (or taken something away)"
    echo "ok: after $2 all files are as before"
}

purge() {
    apt-get purge -y -qq slurm-pal slurm-pal-submit >/dev/null
}

# usage: as_ada [NAME=VALUE ...] command...
as_ada() {
    setpriv --reuid ada --regid ada --init-groups /usr/bin/env -i HOME=/home/ada LANG=C.UTF-8 "$@"
}

as_user() {
    (cd /home/ada && as_ada PATH=/usr/bin:/bin "$@")
}

# usage: same WHAT EXPECTED SEEN
same() {
    [ "$2" = "$3" ] || die "$1: '$3', not '$2'"
    echo "ok: $1"
}

# usage: since US: seconds since that time, to a tenth.
since() {
    local tenths=$(((${EPOCHREALTIME/./} - $1) / 100000))
    echo "$((tenths / 10)).$((tenths % 10))"
}

# usage: timed COMMAND: run it as it would be typed, and print what it took.
timed() {
    local started_us=${EPOCHREALTIME/./} code=0
    echo "\$ $1"
    eval "$1" >/tmp/said 2>&1 || code=$?
    [ "$code" -eq 0 ] || { cat /tmp/said && die "it failed"; }
    echo "    $(since "$started_us") s"
}
