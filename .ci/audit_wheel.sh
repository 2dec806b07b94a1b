#!/usr/bin/env bash
# Checks a built wheel: platform policy, stable ABI, size, and what the extension links to.
# auditwheel and abi3audit must be on PATH.
#
# usage: audit_wheel.sh WHEEL
set -euo pipefail
wheel=$1
auditwheel show "$wheel"
abi3audit --strict --verbose "$wheel"
python3 "$(dirname "$0")/check_wheel.py" "$wheel"
