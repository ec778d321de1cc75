#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The tests on a real Slurm, and all unit tests, under the Slurm of three Debian suites.
#
# usage: tests/releases.sh [run|clean] [suite ...]      (make test-releases, make clean-releases)
#   PAL_ROOTS       where the root directories and the logs lie (/var/tmp/pal-roots; 2 GB a suite)
#   DEBIAN_MIRROR   the mirror to install from (else the one that apt on this machine uses)
#   PYTEST_ARGS     what pytest runs ("tests/slurm tests/unit")
#
# Each suite has its own root directory, made once by debootstrap and used again. Whatever
# runs in it runs in its own mount and process namespace: when its first process ends, for
# whatever reason, the kernel ends the others and takes the mounts away.
set -euo pipefail

SUITES="bookworm trixie testing"  # Slurm 22.05, 24.11 and 26.05
PACKAGES="ca-certificates g++ libslurm-dev lua5.1 make mariadb-client-core mariadb-server-core munge python3-dev python3-venv slurm-client slurmctld slurmd slurmdbd"
PROGRAM=$(readlink -f "$0")
TREE=$(dirname "$(dirname "$PROGRAM")")
ROOTS=${PAL_ROOTS:-/var/tmp/pal-roots}
CHILD=  # the process that this one waits for, if any

die() {
    echo "releases.sh: $*" >&2
    exit 1
}

# -- around the root directories ------------------------------------------------------------

as_root() {
    [ "$(id -u)" -ne 0 ] || return 0
    command -v sudo >/dev/null || die "debootstrap and chroot need root: run this as root, or install sudo"
    export PAL_PIP_CONF="${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf"
    exec sudo -E "$PROGRAM" "$@"
}

# Root works below this directory, so nobody else may own it.
claim_roots() {
    mkdir -p "$ROOTS"
    if [ ! -O "$ROOTS" ] || [ -L "$ROOTS" ]; then
        die "$ROOTS belongs to somebody else: set PAL_ROOTS to another directory"
    fi
    exec 9>"$ROOTS/lock"
    flock -n 9 || die "another run uses $ROOTS: wait for it, or set PAL_ROOTS"
}

clean() {
    local suite
    for suite in $SUITES; do
        rm -rf --one-file-system "${ROOTS:?}/$suite" "$ROOTS/$suite.log"
    done
    rm -f "$ROOTS/lock"
    rmdir --ignore-fail-on-non-empty "$ROOTS"
}

mirror() {
    # shellcheck disable=SC2016  # $(REPO_URI) is apt's, not the shell's
    local known='$(REPO_URI)'
    echo "${DEBIAN_MIRROR:-$(apt-get indextargets --format "$known" 'Created-By: Packages' 'Label: Debian' | head -n 1)}"
}

# apt's proxy, where it has one, for debootstrap and for the apt of the root.
apt_proxy() {
    local proxy=
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    [ -z "$proxy" ] || export http_proxy="${http_proxy:-$proxy}"
}

# -- inside a root directory ----------------------------------------------------------------

# Run a command as a child that a signal to this script ends.
step() {
    "$@" &
    CHILD=$!
    local code=0
    wait "$CHILD" || code=$?
    CHILD=
    return "$code"
}

stop() {
    [ -z "$CHILD" ] || kill "-$1" "$CHILD" 2>/dev/null || true
}

# Run a command in namespaces that end with it.
apart() {
    step unshare --mount --pid --fork --kill-child --mount-proc "$@"
}

# usage: in_root ROOT command...
in_root() {
    apart "$PROGRAM" --mounted "$@"
}

# The same, where the namespaces are. The network settings and pip's go along.
mounted() {
    local root=$1
    shift
    mount --bind "$root" "$root"  # a root of a mount's own: CRIU and user namespaces need that, and chroot gives none
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --rbind --read-only /sys "$root/sys"
    mount -t tmpfs tmpfs "$root/dev/shm"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    local kept=(HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
    local name
    for name in $(compgen -e); do
        case $name in
            PIP_* | *_proxy | *_PROXY | SSL_CERT_FILE | REQUESTS_CA_BUNDLE | PYTEST_ARGS) kept+=("$name=${!name}") ;;
        esac
    done
    cd "$root"
    pivot_root . mnt
    umount --lazy /mnt
    exec env -i "${kept[@]}" "$@"
}

# CRIU, where the suite has 4.2 or newer.
packages() {
    [ "$1" != testing ] || echo -n "criu "
    echo "$PACKAGES"
}

make_root() {
    local suite=$1 root=$ROOTS/$1 source packages
    packages=$(packages "$1")
    if [ ! -e "$root/made" ]; then
        "$TREE/etc/install-packages.sh" debootstrap
        source=$(mirror)
        [ -n "$source" ] || die "apt on this machine names no Debian mirror: set DEBIAN_MIRROR"
        rm -rf --one-file-system "$root"
        apart debootstrap --variant=minbase "$suite" "$root" "$source"
        printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"  # packages start no daemons here
        chmod 755 "$root/usr/sbin/policy-rc.d"
        touch "$root/made"
    fi
    copy_network "$root"
    [ "$(cat "$root/made")" != "$packages" ] || return 0
    # The mirror may be a snapshot, whose signed lists have an end date that has passed.
    in_root "$root" apt-get update -qq -o Acquire::Check-Valid-Until=false
    # shellcheck disable=SC2086  # words on purpose
    in_root "$root" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages
    copy_network "$root"  # installing ca-certificates wrote the certificates anew
    echo "$packages" >"$root/made"
}

# Name resolution, certificates and pip's settings, as they are on this machine.
copy_network() {
    local file
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt \
        "${PIP_CERT:-}" "${SSL_CERT_FILE:-}" "${REQUESTS_CA_BUNDLE:-}" "${PIP_CONFIG_FILE:-}"; do
        [ ! -f "$file" ] || install -D -m 644 "$(readlink -f "$file")" "$1$file"
    done
    file=${PAL_PIP_CONF:-${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf}
    [ ! -f "$file" ] || install -D -m 644 "$file" "$1/root/.config/pip/pip.conf"
}

# What git would commit of the working tree, as it is now.
copy_tree() {
    local root=$1
    rm -rf --one-file-system "$root/src"
    mkdir "$root/src"
    (
        cd "$TREE"
        git -c safe.directory="$TREE" ls-files -z --cached --others --exclude-standard |
            while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
            tar --create --null --files-from=- | tar --extract --no-same-owner --directory="$root/src"
    )
}

# What happens in the root, in its /src. The virtual environment stays for the next run.
inside() {
    cd /src
    [ -e /venv/bin/pip ] || python3 -m venv --clear /venv
    etc/install-locked.sh /venv/bin/python test test lint
    /venv/bin/pip install --quiet --no-deps --no-build-isolation --force-reinstall .
    rm -rf build
    local code=0
    # shellcheck disable=SC2086  # words on purpose
    /venv/bin/pytest -q -n 3 --dist loadfile ${PYTEST_ARGS:-tests/slurm tests/unit} || code=$?
    echo "Slurm $(slurmctld -V | cut -d ' ' -f 2), Python $(python3 -V | cut -d ' ' -f 2)"
    return "$code"
}

# -- a run ----------------------------------------------------------------------------------

# The last summary of pytest in a log, as the end of a line of the table.
outcome() {
    local summary what count line=
    summary=$(grep -E '^[0-9]+ .* in [0-9.]+s' "$1" | tail -n 1 || true)
    for what in passed failed error skipped; do
        count=$(grep -oE "[0-9]+ $what" <<<"$summary" || true)
        [ -z "$summary" ] || : "${count:=0}"
        line+=$(printf ' %8s' "${count%% *}")
    done
    echo "$line"
}

one_suite() {
    make_root "$1"
    copy_tree "$ROOTS/$1"
    in_root "$ROOTS/$1" /src/tests/releases.sh --inside
}

run() {
    local suite log result failed=0
    local table='suite     release                           passed   failed    error  skipped  result'
    for suite in "$@"; do
        log=$ROOTS/$suite.log
        echo "$suite: the root directory, then the tests; output in $log"
        result=ok
        if ! step "$PROGRAM" --suite "$suite" >"$log" 2>&1; then
            result=FAILED
            failed=1
            tail -n 30 "$log"
        fi
        table+=$(printf '\n%-9s %-30s%s  %s' "$suite" "$(grep -E '^Slurm [0-9]' "$log" | tail -n 1)" "$(outcome "$log")" "$result")
    done
    printf '\n%s\n' "$table"
    return "$failed"
}

trap 'exit 130' INT TERM HUP
case ${1:-run} in
    --mounted) shift && mounted "$@" ;;
    --inside) inside ;;
    --suite) trap 'stop KILL' EXIT && one_suite "$2" ;;
    run | clean)
        as_root "$@"
        command=${1:-run}
        shift || true
        claim_roots
        trap 'stop TERM' EXIT
        apt_proxy
        # shellcheck disable=SC2086  # words on purpose
        if [ "$command" = clean ]; then clean; elif [ $# -gt 0 ]; then run "$@"; else run $SUITES; fi
        ;;
    *) die "unknown command $1: run or clean" ;;
esac
