#!/bin/sh
# Makes the environment ENV with the packages of requirements.txt on top of the virtual environment BASE, whose torch,
# onnxruntime and bertfuse it uses. Exit code 75 where no package index is reached.
#     setup.sh ENV BASE
set -eu
env=$1 base=$2 here=$(dirname "$0")
"$base/bin/python" -m venv --clear "$env"
"$env/bin/python" - "$base" <<'PYTHON'
import sys
import sysconfig
from pathlib import Path

packages = Path(sys.argv[1]).resolve().glob("lib/python3.*/site-packages")
lines = [f"import site; site.addsitedir({str(folder)!r})\n" for folder in packages]
Path(sysconfig.get_path("purelib"), "base.pth").write_text("".join(lines))
PYTHON
if ! "$env/bin/pip" download --quiet --no-deps --dest "$env/probe" 'packaging==25.0' 2>/dev/null; then
  exit 75
fi
# pip complains of requirements of packages in BASE that nothing here uses.
"$base/bin/python" "$here/../../cmake/requirements.py" serve ray >"$env/ray.txt"
"$env/bin/pip" install --quiet --requirement "$here/requirements.txt" --requirement "$env/ray.txt" 2>"$env/pip.log" || { cat "$env/pip.log"; exit 1; }
for other in older newer transformers-4.46; do
  "$env/bin/pip" install --quiet --no-deps --target "$env/$other" --requirement "$here/$other.txt" 2>>"$env/pip.log" ||
    { cat "$env/pip.log"; exit 1; }
done
# Triton's Python stub was built for NumPy 1: it gets an environment of its own on top of this one.
if "$env/bin/pip" download --quiet --no-deps --dest "$env/triton-wheels" --requirement "$here/triton.txt" 2>"$env/triton.log"
then
  "$base/bin/python" -m venv --clear --without-pip "$env/triton"
  for packages in "$env"/triton/lib/python3.*/site-packages; do
    cp "$env"/lib/python3.*/site-packages/base.pth "$packages/base.pth"
    "$env/bin/pip" install --quiet --no-deps --target "$packages" "$env"/triton-wheels/* 2>>"$env/triton.log"
  done
fi
touch "$env/.ready"
