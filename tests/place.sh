#!/bin/sh
# SPDX-License-Identifier: MIT
# Make a directory for the files of a test run and print its name: in memory where 6 GiB are free and programs may
# run, since hundreds of small databases and labs would wait for a disk. Others may pass through it, not list it.
set -eu

root=
if [ "$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -ge 6291456 ] 2>/dev/null &&
    root=$(mktemp -d /dev/shm/pal.XXXXXX 2>/dev/null); then
    printf '#!/bin/sh\n' >"$root/runs"
    chmod 755 "$root/runs"
    if "$root/runs" 2>/dev/null; then rm "$root/runs"; else rm -r "$root"; root=; fi
fi
[ -n "$root" ] || root=$(mktemp -d)
chmod 711 "$root"
echo "$root"
