#!/bin/sh
# debian_package.sh PACKAGE SUITE DESTINATION: see DebianPackage.cmake.
# The sources are the machine's own with the suite's name replaced, so a mirror set up for it is the one used.
set -eu
package=$1 suite=$2 destination=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

. /etc/os-release
if [ "${ID:-}" != debian ]; then
  echo "this is ${ID:-no} Linux, not Debian"
  exit 1
fi
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
options=
[ -r "$keyring" ] && options="[signed-by=$keyring] "
# One line per repository that serves this release under its plain name: no -updates, no -security.
apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
  awk -v release="$VERSION_CODENAME" -v suite="$suite" -v options="$options" \
    '($2 == release || $2 == "stable" || $2 == suite) && $3 == "main" { print "deb " options $1 " " suite " main" }' |
  sort -u >"$scratch/sources.list"
if [ ! -s "$scratch/sources.list" ]; then
  echo "no Debian repository in this machine's package sources"
  exit 1
fi

mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial"
apt() {
  apt-get -q -o "Dir::State::lists=$scratch/lists" -o "Dir::Cache=$scratch/cache" \
    -o "Dir::Etc::sourcelist=$scratch/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none -o Acquire::http::Timeout=20 "$@"
}
apt update
cd "$scratch"
apt download "$package"
mkdir -p "$destination"
dpkg -x "$scratch/$package"_*.deb "$destination"
