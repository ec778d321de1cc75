# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Root directories of their own, made by debootstrap, and commands that run in them. For tests/releases.sh and
# packaging/test.sh, which set PROGRAM (themselves; `PROGRAM --mounted` calls mounted) and TREE.
#
#   PAL_ROOTS       where the root directories and the logs lie (/var/tmp/pal-roots)
#   DEBIAN_MIRROR   the mirror to install from (else the one that apt on this machine uses)

ROOTS=${PAL_ROOTS:-/var/tmp/pal-roots}
CHILD=  # the process that this one waits for, if any

die() {
    echo "${PROGRAM##*/}: $*" >&2
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
    cd "$root" || exit
    pivot_root . mnt
    umount --lazy /mnt
    exec env -i "${kept[@]}" "$@"
}

# usage: bare_root SUITE ROOT: a minimal Debian, made once by debootstrap.
bare_root() {
    local suite=$1 root=$2 source
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
