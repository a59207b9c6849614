#!/bin/sh
# triton.sh WHEEL FOLDER: a tritonserver of PyPI (nvidia-pytriton) serves what `bertfuse triton --backend python` makes of
# FOLDER, a fused sentence encoder; bertfuse is in its environment from the wheel alone, without sources or torch.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
wheel=$(realpath "$1") folder=$(realpath "$2")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-python3}" -m venv "$scratch/env"
"$scratch/env/bin/pip" install --quiet --requirement "$here/../ecosystem/triton.txt"
"$scratch/env/bin/pip" install --quiet --only-binary :all: "$wheel[cpu]" --constraint "$here/../ecosystem/triton.txt"
mkdir "$scratch/home"
cd "$scratch/home"
env -i HOME="$scratch/home" PATH="$scratch/env/bin:/usr/bin:/bin" "$scratch/env/bin/python" "$here/triton_trial.py" "$folder"
