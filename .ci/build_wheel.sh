#!/usr/bin/env bash
# Builds the wheel by the [tool.cibuildwheel] table in a container on this machine, and smoke-tests it
# there, on the oldest and the newest Python that the builder image has.
#
# usage: build_wheel.sh OUTPUT_FOLDER       cibuildwheel must be on PATH
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/lib.sh"
root=$(dirname "$here")
output=$(mkdir -p "$1" && cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
machine=$(uname -m)
ca_folder=/etc/ssl/certs

# runc and the host's network work where a machine has neither crun's kernel features nor a firewall to set up.
cat >"$work/containers.conf" <<CONF
[containers]
netns = "host"
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
CONF
export CONTAINERS_CONF="$work/containers.conf"

say "builder image"
"$here/builder_image.sh" "$work/rootfs" | tee "$work/image.log"
image=$(tail -n 1 "$work/image.log")
snapshot "$root" "$work/project"

# python_tags COMMAND...: the oldest and the newest Python of the image that the package supports.
python_tags() {
  "$@" ls /opt/python | sed -n 's/^\(cp31[0-9]\)-.*/\1/p' | sort --version-sort | sed -n '1p;$p' | uniq
}

build_in_container() {
  local builds
  builds=$(python_tags podman run --rm "$image" | sed "s/$/-manylinux_$machine/" | paste -sd ' ')
  say "wheel: cibuildwheel in a container, $builds"
  # The audit commands run on this machine afterwards: cibuildwheel's own step fetches a tool from elsewhere.
  (cd "$work/project" && env \
    CIBW_BUILD="$builds" \
    CIBW_CONTAINER_ENGINE="podman; create_args: --volume $ca_folder:$ca_folder:ro; disable_host_mount: true" \
    "CIBW_MANYLINUX_${machine^^}_IMAGE=$image" \
    CIBW_ENVIRONMENT_LINUX="PIP_CERT=$ca_folder/ca-certificates.crt $("${PYTHON:-python3}" "$here/pip_environment.py")" \
    CIBW_AUDIT_COMMAND= \
    cibuildwheel --platform linux --archs "$machine" --output-dir "$output")
}

# The same steps in a bubblewrap sandbox over the builder's file tree.
build_in_sandbox() {
  [ -e "$work/rootfs/bin" ] || die "no builder file tree to make a sandbox of"
  mkdir -p "$work/rootfs/project" "$work/rootfs/output"
  local sandbox=(bwrap --bind "$work/rootfs" / --dev /dev --proc /proc --tmpfs /tmp
    --bind "$work/project" /project --bind "$output" /output --ro-bind /etc/resolv.conf /etc/resolv.conf
    --ro-bind "$ca_folder" "$ca_folder" --unshare-pid --die-with-parent --clearenv
    --setenv PATH /usr/local/bin:/usr/bin:/bin --setenv PIP_CERT "$ca_folder/ca-certificates.crt")
  local setting tag tags
  for setting in $("${PYTHON:-python3}" "$here/pip_environment.py"); do
    sandbox+=(--setenv "${setting%%=*}" "${setting#*=}")
  done
  mapfile -t tags < <(python_tags "${sandbox[@]}")
  say "wheel: in a sandbox, ${tags[*]}"
  "${sandbox[@]}" bash -euc '
    "/opt/python/$0-$0/bin/pip" wheel /project --no-deps --wheel-dir /tmp/built \
      --config-settings=cmake.define.FUSER_DIRECT_WERROR=ON
    auditwheel repair -w /output /tmp/built/*.whl' "${tags[0]}"
  for tag in "${tags[@]}"; do
    say "smoke tests in the sandbox, $tag"
    "${sandbox[@]}" bash -euc '
      "/opt/python/$0-$0/bin/python" -m venv /tmp/venv
      /tmp/venv/bin/pip install --quiet /output/*.whl pytest pytest-timeout
      mkdir /tmp/elsewhere && cd /tmp/elsewhere && PATH="/tmp/venv/bin:$PATH" bash /project/.ci/smoke.sh' "$tag"
  done
}

if podman run --rm "$image" true; then
  build_in_container
else
  warn_loudly "no container can start here: building and smoke-testing in a bubblewrap sandbox instead"
  build_in_sandbox
fi
ls -l "$output"
