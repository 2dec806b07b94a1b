#!/usr/bin/env bash
# Installs the Debian packages that the run needs and that are not there yet.
set -euo pipefail
packages=(bubblewrap ca-certificates debootstrap g++ git podman runc)
missing=()
for package in "${packages[@]}"; do
  dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null |
    grep -qx installed || missing+=("$package")
done
if ((${#missing[@]})); then
  echo "installing ${missing[*]}"
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes "${missing[@]}" >/dev/null
fi
dpkg-query --show --showformat='${Package} ${Version}\n' "${packages[@]}"
