#!/bin/sh
# SPDX-License-Identifier: MIT
# Install what etc/locked/NAME.txt lists, each file checked by its SHA-256. What has no wheel for this machine is
# built by the setuptools of etc/locked/build.txt. A Python or machine for which the locked versions were not made
# gets the newest ones instead, and a line that says so.
#
# The list is whole, so pip adds nothing (--no-deps): of `coverage[toml]` it would take a version newer than the listed
# `coverage` and then refuse it.
#
# usage: etc/install-locked.sh PYTHON NAME extra ...      the extras of pyproject.toml from which NAME.txt is made
set -eu

python=$1
name=$2
shift 2

if "$python" -c 'import os, sys; sys.exit(sys.version_info >= (3, 15) or os.uname().machine not in ("x86_64", "aarch64"))'; then
    "$python" -m pip install --quiet --no-deps --require-hashes --only-binary :all: -r etc/locked/build.txt
    "$python" -m pip install --quiet --no-deps --require-hashes --no-build-isolation --use-pep517 -r "etc/locked/$name.txt"
else
    echo "etc/locked is for Python 3.11 to 3.14 on x86_64 and aarch64: versions are neither locked nor checked here"
    { "$python" etc/requirements.py build; "$python" etc/requirements.py "$@"; } | "$python" -m pip install --quiet -r /dev/stdin
fi
