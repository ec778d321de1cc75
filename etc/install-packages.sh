#!/bin/sh
# SPDX-License-Identifier: MIT
# Install the named Debian packages that are missing. If all of them are there, nothing
# happens and no privilege is needed. A lab starts its own daemons and does not use those
# that the packages may start.
set -eu

missing=
for package in "$@"; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1; then
    as_root=sudo
else
    echo "These packages are missing and need root: apt-get install$missing" >&2
    exit 1
fi

echo "Installing$missing"
wait='DPkg::Lock::Timeout=300' # seconds for another installation, such as Debian's own at night, to end
$as_root apt-get update -qq -o "$wait"
# shellcheck disable=SC2086  # words on purpose
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o "$wait" --no-install-recommends $missing >/dev/null
