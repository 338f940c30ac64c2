#!/usr/bin/env bash
# Builds an image without a registry and prints its name: deploy/image.sh [NAME [DOCKERFILE [BASE]]]
# If nothing is said, the CPU image. If no base is named, it is made by debootstrap, once, from the
# mirror that this machine's apt uses. Packages are fetched here, with whatever this machine's pip needs
# for it (indexes, proxies, certificates, tokens), and handed to the build as files. Nothing of that
# gets into the image, nor does the mirror's address or what debootstrap copies of this machine.
# TORCH_INDEX_URL: as in deploy/venv.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
own_base=$([ $# -eq 3 ] || echo yes)
name=${1:-localhost/tidegate:cpu}
dockerfile=${2:-deploy/Dockerfile.cpu}
base=${3:-localhost/tidegate-debian:$suite}
public=http://deb.debian.org/debian
wheels=$PWD/build/wheels
scratch=$(mktemp -d)
# A debootstrap that is killed leaves /proc mounted in it.
trap 'rm -rf --one-file-system "$scratch"' EXIT

say() { echo "tidegate: $*" >&2; }
die() { say "$*"; exit 1; }

# This machine's mirror of its own release; nothing where apt has not asked it yet.
mirror() {
  apt-get indextargets --format '$(REPO_URI)' \
    "Origin: Debian" "Codename: $suite" "Identifier: Packages" | sed -n 1p
}

# The smallest Debian of this machine's own release, so that its Python takes the same wheels.
make_base() {
  local mirror
  mirror=$(mirror)
  say "making $base by debootstrap (minutes, once)"
  debootstrap --variant=minbase --include=ca-certificates,libnuma1,python3,python3-venv,tini \
    "$suite" "$scratch/root" ${mirror:+"$mirror"} >"$scratch/debootstrap.log" ||
    die "debootstrap failed: $(tail -n 3 "$scratch/debootstrap.log")"
  echo "deb $public $suite main" >"$scratch/root/etc/apt/sources.list"
  tar -C "$scratch/root" --create --exclude=./var/cache/apt/* --exclude=./var/lib/apt/lists/* \
    --exclude=./usr/share/man/* --exclude=./usr/share/locale/* \
    --exclude=./etc/resolv.conf --exclude=./etc/hostname --exclude=./var/log/bootstrap.log . |
    podman import --quiet --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$base" >&2
}

# Hashes are checked here and once more in the build.
fetch_wheels() {
  local locks=(config/torch-cpu.lock config/cpu.lock) index=() wanted
  wanted=$({ python3 -V && cat "${locks[@]}"; } | sha256sum)
  if [ "$(cat "$wheels/complete" 2>/dev/null)" = "$wanted" ]; then return; fi
  say "fetching the packages of ${locks[*]} (minutes, once)"
  python3 -m venv "$scratch/venv"
  rm -rf "$wheels"
  if [ -n "${TORCH_INDEX_URL:-}" ]; then index=(--index-url "$TORCH_INDEX_URL"); fi
  download "${index[@]}" -r config/torch-cpu.lock || die "pip found no CPU build of torch: set TORCH_INDEX_URL"
  download --only-binary :all: -r config/cpu.lock
  echo "$wanted" >"$wheels/complete"
}
download() {
  "$scratch/venv/bin/pip" --disable-pip-version-check -qq download --no-deps --dest "$wheels" "$@" >&2
}

build() {
  printf '[global]\nno-index = true\nfind-links = /wheels\ndisable-pip-version-check = true\nroot-user-action = ignore\n' >"$scratch/pip.conf"
  local apt=()
  # In the place of the public one, while it builds.
  if [ "$own_base" = yes ]; then
    mirror | sed "s|.*|deb & $suite main|" >"$scratch/sources.list"
    if [ -s "$scratch/sources.list" ]; then apt=(--volume "$scratch/sources.list:/etc/apt/sources.list:ro"); fi
  fi
  # A build in a chroot needs no container runtime, and works inside a container too.
  buildah build --isolation chroot --layers --quiet \
    --volume "$wheels:/wheels:ro" "${apt[@]}" --secret "id=pip.conf,src=$scratch/pip.conf" \
    --build-arg "BASE_IMAGE=$base" --build-arg "VERSION=$(version)" --build-arg "REVISION=$(revision)" \
    --file "$dockerfile" --tag "$name" . >"$scratch/build.log" 2>&1 ||
    die "the build failed: $(tail -n 20 "$scratch/build.log")"
}
version() { sed -nE 's/^version = "(.*)"$/\1/p' pyproject.toml; }
revision() { git rev-parse HEAD 2>/dev/null || echo unknown; }

deploy/debian.sh buildah debootstrap podman python3-venv runc
if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
  if [ $# -eq 3 ]; then die "there is no image $base"; fi
  make_base
fi
fetch_wheels
build
echo "$name"
