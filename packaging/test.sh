#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Install the packages of dist/ into a fresh Debian of this machine's release, use them there, and remove them.
#
# usage: packaging/test.sh [run|rpm|time|clean]      (make test-packages: run, then rpm)
#   run     they work, whatever the environment of their user, and leave nothing
#   rpm     the same for the RPM packages, installed by rpm, to which a package made here offers what this Debian has
#   time    from a fresh root to the first job that palsub placed, and what palsub takes beside sbatch
#   PAL_ROOTS, DEBIAN_MIRROR      as in tests/roots.sh; 2 GB
set -euo pipefail

PROGRAM=$(readlink -f "$0")
TREE=$(dirname "$(dirname "$PROGRAM")")
# shellcheck source=tests/roots.sh
. "$TREE/tests/roots.sh"
# shellcheck source=packaging/inside.sh
. "$TREE/packaging/inside.sh"

SLURM="slurm-client slurmctld slurmd munge"
HOSTILE=/tmp/hostile
IMPORTED='
import importlib, pkgutil, slurm_pal
for module in pkgutil.walk_packages(slurm_pal.__path__, "slurm_pal."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if error.name not in ("cupy", "pytorch_lightning", "submitit", "torch", "transformers"):
            print(module.name, error)
'

# -- around the root directory --------------------------------------------------------------

# usage: in_fresh_root STEP deb|rpm: a copy of the bare root, in which nobody has installed anything.
in_fresh_root() {
    local bare=$ROOTS/bare root=$ROOTS/fresh suite
    suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    bare_root "$suite" "$bare"
    rm -rf --one-file-system "$root"
    cp -a "$bare" "$root"
    mkdir -p "$root/packages/packaging" "$root/packages/tests"
    find "$TREE/dist" -name "slurm-pal*.$2" -exec cp -t "$root/packages" {} +
    cp "$PROGRAM" "$TREE/packaging/inside.sh" "$root/packages/packaging"
    cp "$TREE/tests/roots.sh" "$TREE/tests/bench/palsub_cost.py" "$root/packages/tests"
    in_root "$root" /packages/packaging/test.sh "$1"
    rm -rf --one-file-system "$root"
}

clean() {
    rm -rf --one-file-system "${ROOTS:?}/bare" "$ROOTS/fresh"
    rm -f "$ROOTS/lock"
    rmdir --ignore-fail-on-non-empty "$ROOTS"
}

# -- inside it ------------------------------------------------------------------------------

# A user's own Python settings, programs and folder, each of which would end our programs if it counted.
hostile() {
    mkdir -p "$HOSTILE/slurm_pal" "$HOSTILE/bin"
    local name
    for name in sitecustomize usercustomize numpy click posixpath slurm_pal/__init__; do
        echo 'raise SystemExit("hostile")' >"$HOSTILE/$name.py"
    done
    for name in python3 readlink env base64; do
        printf '#!/bin/sh\necho hostile\nexit 1\n' >"$HOSTILE/bin/$name"
    done
    chmod -R a+rX "$HOSTILE" && chmod 755 "$HOSTILE"/bin/*
    printf '%s\n' PYTHONPATH="$HOSTILE" PYTHONHOME="$HOSTILE" PYTHONUSERBASE="$HOSTILE" PATH="$HOSTILE/bin"
}

# usage: isolated WORDS...: a program says the same, whatever its environment and folder.
isolated() {
    local words said
    readarray -t words < <(hostile)
    said=$(cd "$HOSTILE" && as_ada "${words[@]}" "/usr/bin/$1" "${@:2}" 2>&1) || said="exit status $?: $said"
    same "$* in a hostile environment" "$(as_user "$@" 2>&1)" "$said"
}

inside() {
    begin
    local version page program code=0 said
    version=$(dpkg-deb --field slurm-pal-submit_*.deb Version | sed 's/~~/./; s/~//')
    listing >/tmp/before

    install_quietly ./slurm-pal-submit_*.deb
    same "palsub --pal-help, without slurm-pal" "usage: palsub" "$(as_user palsub --pal-help | head -c 13)"
    isolated palsub --pal-help
    said=$(as_user palsub --gres=gpu:1 --wrap true 2>&1) || code=$?
    touch --date=2000-01-01 /usr/lib/slurm-pal/bin/palsub
    install_quietly --reinstall "$(basename "$(readlink -f /usr/bin/python3)")-minimal"
    [ /usr/lib/slurm-pal/bin/palsub -nt /usr/bin/python3 ] || die "palsub tries an updated Python before each job"
    echo "ok: another Python was tried when it was installed"
    same "palsub without Slurm" "127 palsub: sbatch: command not found" "$code $said"

    install_quietly ./slurm-pal_*.deb
    isolated palsub --pal-help
    for program in pal pal-profile pal-rebalance; do
        same "$program --version" "$program (slurm-pal) $version" "$(as_user "$program" --version)"
        isolated "$program" --help
    done
    code=0
    said=$(as_user pal doctor 2>/tmp/stderr) || code=$?
    local missing="1 FAIL  placing      no: not in PATH: sbatch, scontrol, squeue, scancel"
    same "pal doctor without Slurm" "$missing" "$code ${said%%$'\n'*}"
    same "its stderr" "" "$(cat /tmp/stderr)"
    for page in palsub pal.toml pal pal-profile pal-rebalance; do
        [ -n "$(find /usr/share/man -name "$page.[15].gz")" ] || die "there is no man page $page"
    done
    [ -z "$(find /etc -name '*pal*')" ] || die "a unit or a setting of ours is in /etc: $(find /etc -name '*pal*')"
    pal --help >/dev/null && pal-rebalance --help >/dev/null  # as root, who could write byte code
    purge
    nothing_left /tmp/before "apt-get purge"

    # shellcheck disable=SC2086  # words on purpose
    install_quietly $SLURM
    listing >/tmp/before
    install_quietly ./slurm-pal_*.deb ./slurm-pal-submit_*.deb
    as_user bash -euo pipefail /packages/packaging/test.sh --placed
    purge
    nothing_left /tmp/before "apt-get purge"
}

rpm_quietly() {
    local code=0
    rpm --force-debian "$@" >/tmp/rpm 2>&1 || code=$?
    [ "$code" -eq 0 ] || { cat /tmp/rpm && die "rpm $* failed"; }
}

# rpm knows nothing of what apt has installed. This package stands for it: Python as a file, and the versions of the
# symbols that the libraries here really have.
offer_system() {
    local python=$1
    {
        printf '%s\n' 'Name: system' 'Version: 1' 'Release: 1' 'Summary: What Debian has' 'License: none' 'AutoReqProv: no'
        printf 'Provides: %s\n' /bin/sh 'rtld(GNU_HASH)'
        find /lib/*-linux-gnu -name '*.so.*' -type f | /usr/lib/rpm/elfdeps --provides | sort -u | sed 's/^/Provides: /'
        printf '%s\n' '%global __os_install_post %{nil}' '%description' 'What Debian has.' '%files' "$python"
        # shellcheck disable=SC2016  # rpmbuild expands it
        printf '%s\n' '%install' "mkdir -p %{buildroot}/usr/bin && cp -p $python %{buildroot}$python"
    } >/tmp/system.spec
    rpmbuild --quiet --define "_topdir /tmp/rpmbuild" -bb /tmp/system.spec >/tmp/rpm 2>&1 || { cat /tmp/rpm && die "rpmbuild failed"; }
    mv /tmp/rpmbuild/RPMS/*/system-*.rpm /tmp/system.rpm
    rpm_quietly --install --replacefiles /tmp/system.rpm
}

inside_rpm() {
    begin
    # shellcheck disable=SC2086  # words on purpose
    install_quietly rpm $SLURM
    local version program python said
    python=$(readlink -f /usr/bin/python3)
    version=$(rpm --query --package --queryformat '%{VERSION}' slurm-pal-submit-*.rpm | sed 's/~~/./; s/~//')
    said=$(rpm --force-debian --install slurm-pal-submit-*.rpm 2>&1) && die "rpm installs palsub without Python"
    grep -qF "$python is needed by slurm-pal-submit" <<<"$said" || die "rpm refuses palsub for another reason: $said"
    echo "ok: rpm refuses palsub without $python"
    offer_system "$python"
    listing >/tmp/before

    said=$(rpm --force-debian --install slurm-pal-[0-9]*.rpm 2>&1) && die "rpm installs slurm-pal without slurm-pal-submit"
    same "all that slurm-pal lacks is slurm-pal-submit" "slurm-pal-submit" \
        "$(grep -F 'is needed by' <<<"$said" | sed 's/^[[:space:]]*//; s/ .*//' | sort -u)"
    rpm_quietly --install slurm-pal-submit-*.rpm
    same "palsub --pal-help, without slurm-pal" "usage: palsub" "$(as_user palsub --pal-help | head -c 13)"
    isolated palsub --pal-help
    touch --date=2000-01-01 /usr/lib/slurm-pal/bin/palsub
    rpm_quietly --install --replacepkgs /tmp/system.rpm
    [ /usr/lib/slurm-pal/bin/palsub -nt "$python" ] || die "palsub tries an updated Python before each job"
    echo "ok: another Python was tried when it was installed"

    rpm_quietly --install slurm-pal-[0-9]*.rpm
    for program in pal pal-profile pal-rebalance; do
        same "$program --version" "$program (slurm-pal) $version" "$(as_user "$program" --version)"
        isolated "$program" --help
    done
    [ -z "$(find /etc -name '*pal*')" ] || die "a unit or a setting of ours is in /etc: $(find /etc -name '*pal*')"
    as_user bash -euo pipefail /packages/packaging/test.sh --placed
    pal --help >/dev/null && pal-rebalance --help >/dev/null  # as root, who could write byte code
    same "rpm --verify" "" "$(rpm --verify --nodeps slurm-pal slurm-pal-submit 2>&1)"
    said=$(rpm --force-debian --erase slurm-pal-submit 2>&1) && die "rpm takes palsub from under slurm-pal"
    rpm_quietly --erase slurm-pal slurm-pal-submit
    nothing_left /tmp/before "rpm --erase"
}

# As an ordinary user: a lab, its GPUs measured, and a job that palsub places.
placed() {
    pal lab up
    trap 'pal lab down' EXIT
    eval "$(pal lab env)"
    pal-profile run --yes >/dev/null
    local said
    local words=(--pal-class A --pal-explain --gres=gpu:1 --wait -o out)
    said=$(palsub "${words[@]}" --wrap 'pal lab work --class A --seconds 1 && echo "done"' 2>&1)
    echo "${said//$'\n'/$'\n'    }"
    grep -q 'decision: sent to' < <(pal explain --last) || die "palsub has not placed the job"
    grep -qx 'done' out || die "the job has not run to its end"
    echo "ok: a job placed by palsub, and run"
    pal report --html page.html >/dev/null
    pal heatmap >/dev/null
    pal simulate --generate jobs=20,load=0.5 --seeds 1 >/dev/null
    echo "ok: a report, a heat map, a simulation"
    same "modules that cannot be imported" "" "$(/usr/lib/slurm-pal/bin/python3 -I -c "$IMPORTED")"
}

inside_time() {
    cd /packages
    export DEBIAN_FRONTEND=noninteractive
    timed 'apt-get update -o Acquire::Check-Valid-Until=false'
    timed "apt-get install -y ./slurm-pal*.deb $SLURM"
    timed 'pal lab up'
    # shellcheck disable=SC2016  # eval expands it
    timed 'eval "$(pal lab env)"'
    timed 'pal-profile run --yes'
    timed "palsub --gres=gpu:1 --wrap 'pal lab work --seconds 1'"
    pal explain --last | grep 'decision:'
    du -sm /usr/lib/slurm-pal | sed 's/\t.*/ MiB in \/usr\/lib\/slurm-pal/'
    pal lab down >/dev/null
    /usr/lib/slurm-pal/bin/python3 -P tests/palsub_cost.py --nodes 8 --other /usr/bin/palsub
}

trap 'exit 130' INT TERM HUP
case ${1:-run} in
    --mounted) shift && mounted "$@" ;;
    --inside) inside ;;
    --inside-rpm) inside_rpm ;;
    --inside-time) inside_time ;;
    --placed) placed ;;
    run | rpm | time | clean)
        as_root "$@"
        claim_roots
        trap 'stop KILL' EXIT  # unshare lets no other signal through
        apt_proxy
        case ${1:-run} in
            run) in_fresh_root --inside deb ;;
            rpm) in_fresh_root --inside-rpm rpm ;;
            time) in_fresh_root --inside-time deb ;;
            clean) clean ;;
        esac
        ;;
    *) die "unknown command $1: run, rpm, time or clean" ;;
esac
