#!/usr/bin/env bash
# Builds kube-apiserver and kube-controller-manager from Debian's source package and prints the
# directory that holds them. Nobody ships them as packages, and an autoscaler that is not the real
# controller proves nothing. Once for a machine: 34 MB, ten minutes of CPU, 3 GB while it lasts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Bookworm's: the last that Debian has whole, with what it is built from.
package=kubernetes_1.20.5+really1.20.2-1.1+deb12u1
version=v1.20.2
go=/usr/lib/go-1.19/bin
reflect2=/usr/share/gocode/src/github.com/modern-go/reflect2
cache=$HOME/.cache/tidegate/control-plane
kept=$cache/$version

# fetch DIRECTORY : the unpacked source, its signatures checked by apt
fetch() {
  local site options
  # Others than Debian have a component `main` too. It is unknown before the first update.
  site=$(apt-get indextargets --format '$(REPO_URI)' \
    'Origin: Debian' 'Codename: bookworm' 'Component: main' 'Created-By: Packages' | sed -n 1p)
  site=${site:-http://deb.debian.org/debian}
  mkdir -p "$1/lists/partial"
  # Beside the machine's own sources, which need not have any of source packages.
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site bookworm main" >"$1/sources"
  options=(-o Dir::Etc::sourcelist="$1/sources" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$1/lists"
    -o APT::Sandbox::User=root)
  apt-get "${options[@]}" -qq update
  (cd "$1" && apt-get "${options[@]}" -qq source --download-only "${package/_/=}" &&
    dpkg-source --no-check --extract "$package.dsc" source >/dev/null)
}

# compile SOURCE
compile() {
  # The one that it brings is older than Go 1.18.
  rm -rf "$1/vendor/github.com/modern-go/reflect2"
  cp -r "$reflect2" "$1/vendor/github.com/modern-go/"
  cat >"$1/version.sh" <<EOF
KUBE_GIT_COMMIT=debian
KUBE_GIT_TREE_STATE=archive
KUBE_GIT_VERSION=$version
KUBE_GIT_MAJOR=1
KUBE_GIT_MINOR=20
EOF
  # Go's own cache is a gigabyte that nobody needs again.
  (cd "$1" && PATH=$go:$PATH GOCACHE=$1/_gocache CGO_ENABLED=0 KUBE_GIT_VERSION_FILE=version.sh \
    nice -n 10 make WHAT="cmd/kube-apiserver cmd/kube-controller-manager" GOLDFLAGS="-s -w")
}

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9 # two makes at once
if [ ! -d "$kept" ]; then
  rm -rf "$cache"/tmp.* # of a build that was killed
  deploy/debian.sh golang-1.19-go golang-github-modern-go-reflect2-dev dpkg-dev rsync jq make >&2
  echo "tidegate: building Kubernetes $version (minutes, once for this machine)" >&2
  scratch=$(mktemp -d -p "$cache")
  trap 'rm -rf "$scratch"' EXIT
  fetch "$scratch" >&2
  compile "$scratch/source" >"$cache/build.log" 2>&1 || { tail -20 "$cache/build.log" >&2; exit 1; }
  mkdir -p "$scratch/kept"
  install -m 755 "$scratch"/source/_output/bin/kube-{apiserver,controller-manager} "$scratch/kept/"
  mv "$scratch/kept" "$kept" # whole, or not at all
fi
echo "$kept"
