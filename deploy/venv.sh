#!/usr/bin/env bash
# Makes .venv hold what the locks say: deploy/venv.sh cpu|gpu [test]
# Does nothing when it already does. A change of lock, build or Python, or an interrupted
# installation, starts from an empty directory: half an upgrade is never served.
# TORCH_INDEX_URL: a package index that has the CPU build of torch, where pip's own has not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=$1
with=${2:-}
venv=.venv
python=$venv/bin/python
stamps=$venv/tidegate
locks=("config/$build.lock")
if [ "$build" = cpu ]; then locks+=(config/torch-cpu.lock); fi

say() { echo "tidegate: $*" >&2; }
die() { say "$*"; exit 1; }
quiet=()
if [ ! -t 2 ]; then quiet=(-qq); fi
install() { "$python" -m pip --disable-pip-version-check install "${quiet[@]}" --no-input --no-deps "$@"; }

fingerprint() { { echo "$build $(python3 -V)" && cat "$@"; } | sha256sum; }
# done_with NAME FILE... : whether step NAME was finished for these very files
done_with() { [ "$(cat "$stamps/$1" 2>/dev/null)" = "$(fingerprint "${@:2}")" ]; }
finish() { fingerprint "${@:2}" >"$stamps/$1"; }

fresh_venv() {
  # A directory that is not ours stays as it is.
  if [ -e "$venv" ] && [ ! -d "$stamps" ]; then
    die "$venv was not made by make: move it away, then run this again"
  fi
  python3 -c 'import ensurepip' 2>/dev/null || die "python3 has no venv module: install python3-venv"
  rm -rf "$venv"
  mkdir -p "$stamps"
  python3 -m venv "$venv"
}

install_torch() {
  local index=() hint="set TORCH_INDEX_URL to a package index that has one"
  if [ -n "${TORCH_INDEX_URL:-}" ]; then index=(--index-url "$TORCH_INDEX_URL"); fi
  install "${index[@]}" -r config/torch-cpu.lock || die "pip found no CPU build of torch: $hint"
  # Read from the file: torch cannot be imported before its dependencies are there.
  "$python" - <<'PY' || die "the torch that pip found is no CPU build: $hint"
import importlib.util, pathlib, runpy, sys
version = pathlib.Path(importlib.util.find_spec("torch").origin).with_name("version.py")
sys.exit(runpy.run_path(str(version))["cuda"] is not None)
PY
}

install_runtime() {
  fresh_venv
  say "installing config/$build.lock into $venv (minutes, once)"
  if [ "$build" = cpu ]; then install_torch; fi
  install --only-binary :all: -r "config/$build.lock"
  finish runtime "${locks[@]}"
}

install_project() {
  install --no-build-isolation --editable .
  finish project pyproject.toml
}

install_test() {
  say "installing config/test.lock into $venv (once)"
  # --force-reinstall: an interrupted run may have left packages that only look installed.
  install --only-binary :all: --force-reinstall -r config/test.lock
  finish test config/test.lock
}

exec 9>"$venv.lock"
flock 9 # two makes at once
done_with runtime "${locks[@]}" || install_runtime
done_with project pyproject.toml || install_project
if [ "$with" = test ]; then done_with test config/test.lock || install_test; fi
