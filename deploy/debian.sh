#!/usr/bin/env bash
# Sees to it that system packages are there: deploy/debian.sh PACKAGE...
# As root on Debian it installs what is missing; elsewhere it says what is, and fails.
set -euo pipefail

# Asks for the thing itself, so that it may have come from anywhere.
present() {
  case $1 in
    # vLLM's CPU kernels link to it.
    libnuma1) python3 -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' ;;
    prometheus) command -v prometheus && command -v promtool ;;
    python3-venv) python3 -c 'import ensurepip' ;;
    *) command -v "$1" ;;
  esac >/dev/null 2>&1
}

missing=()
for package in "$@"; do present "$package" || missing+=("$package"); done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "tidegate: please install (Debian's names): ${missing[*]}" >&2
  exit 1
fi
echo "tidegate: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
# The tests want its programs, not a daemon that listens on every address.
if [[ " ${missing[*]} " == *" prometheus "* && -d /run/systemd/system ]]; then
  systemctl mask --quiet prometheus.service
fi
apt-get update -qq
apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null
