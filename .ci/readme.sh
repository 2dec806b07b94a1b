#!/usr/bin/env bash
# Runs the README's two commands as they are printed there, each from a copy of the tree and in one new
# environment. Ends with the tests' closing line.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/lib.sh"
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
snapshot "$(dirname "$here")" "$work/clone"
"${PYTHON:-python3}" -m venv "$work/environment"
export PATH="$work/environment/bin:$PATH"
cd "$work/clone"
for name in first second; do
  command=$(python .ci/readme_commands.py "$name")
  say "README, $name command: $command"
  bash -euo pipefail -c "$command"
done
