#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The tests on a real Slurm, and all unit tests, under the Slurm of three Debian suites.
#
# usage: tests/releases.sh [run|clean] [suite ...]      (make test-releases, make clean-releases)
#   PAL_ROOTS, DEBIAN_MIRROR   as in tests/roots.sh; 2 GB a suite
#   PYTEST_ARGS                what pytest runs ("tests/slurm tests/unit")
#
# Each suite has its own root directory, made once by debootstrap and used again. Whatever
# runs in it runs in its own mount and process namespace: when its first process ends, for
# whatever reason, the kernel ends the others and takes the mounts away.
set -euo pipefail

SUITES="bookworm trixie testing"  # Slurm 22.05, 24.11 and 26.05
PACKAGES="ca-certificates g++ libslurm-dev lua5.1 make man-db mariadb-client-core mariadb-server-core munge python3-dev python3-venv slurm-client slurmctld slurmd slurmdbd slurmrestd"
PROGRAM=$(readlink -f "$0")
TREE=$(dirname "$(dirname "$PROGRAM")")
# shellcheck source=tests/roots.sh
. "$TREE/tests/roots.sh"

clean() {
    local suite
    for suite in $SUITES; do
        rm -rf --one-file-system "${ROOTS:?}/$suite" "$ROOTS/$suite.log"
    done
    rm -f "$ROOTS/lock"
    rmdir --ignore-fail-on-non-empty "$ROOTS"
}

# CRIU, where the suite has 4.2 or newer.
packages() {
    [ "$1" != testing ] || echo -n "criu "
    echo "$PACKAGES"
}

make_root() {
    local suite=$1 root=$ROOTS/$1 packages
    packages=$(packages "$1")
    bare_root "$suite" "$root"
    [ "$(cat "$root/made")" != "$packages" ] || return 0
    # The mirror may be a snapshot, whose signed lists have an end date that has passed.
    in_root "$root" apt-get update -qq -o Acquire::Check-Valid-Until=false
    # shellcheck disable=SC2086  # words on purpose
    in_root "$root" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages
    copy_network "$root"  # installing ca-certificates wrote the certificates anew
    echo "$packages" >"$root/made"
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
