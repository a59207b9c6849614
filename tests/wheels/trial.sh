#!/bin/sh
# trial.sh WHEEL…: installs each wheel, with its extra `cpu`, in a new environment of every Python from 3.10 to 3.13 that is
# found here, and uses it there with nothing else on the path: no compiler, CMake or nvcc.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tried=0
for version in 3.10 3.11 3.12 3.13; do
  # pyenv has a python3.12 for versions that are installed, but not chosen.
  python=$(ls "${PYENV_ROOT:-/nowhere}"/versions/$version.*/bin/python 2>/dev/null | tail -n 1)
  python=${python:-$(command -v "python$version" || true)}
  if [ -z "$python" ]; then
    echo "Python $version: not here, not tried"
    continue
  fi
  for wheel; do
    "$python" -m venv --clear "$scratch/env"
    "$scratch/env/bin/pip" install --quiet --only-binary :all: "$wheel[cpu]"
    rm -rf "$scratch/home" && mkdir "$scratch/home"
    (cd "$scratch/home" && env -i HOME="$scratch/home" PATH="$scratch/env/bin" "$scratch/env/bin/python" "$here/trial.py")
    echo "Python $version: $(basename "$wheel") works"
    tried=$((tried + 1))
  done
done
[ "$tried" -gt 0 ] || { echo "no Python from 3.10 to 3.13 was found: nothing was tried"; exit 1; }
