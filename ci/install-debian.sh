#!/bin/sh
# The system packages that `make build` and the tests need (fuse3, btrfs-progs: tests/reliability), on Debian 12 or newer. Run as root.
set -eu
packages="g++ cmake make git zlib1g-dev googletest python3-dev python3-venv fuse3 btrfs-progs"
missing=
for package in $packages; do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "installing:$missing"
apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
