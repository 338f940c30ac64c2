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
    etcd-server) command -v etcd ;;
    golang-1.19-go) command -v /usr/lib/go-1.19/bin/go ;;
    golang-github-modern-go-reflect2-dev) ls /usr/share/gocode/src/github.com/modern-go/reflect2 ;;
    dpkg-dev) command -v dpkg-source ;;
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
# The tests want the programs, not daemons that listen on every address.
for package in prometheus etcd-server haproxy; do
  if [[ " ${missing[*]} " == *" $package "* && -d /run/systemd/system ]]; then
    systemctl mask --quiet "${package/etcd-server/etcd}.service"
  fi
done
apt-get update -qq
apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null
