#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds xpugraph against the CUDA torch of `python3` and measures it there: bench/gpu.py OUT.json [options].
# Needs no network: cmake, ninja, a CUDA toolkit of torch's major version, torchvision, rich, typer, matplotlib, safetensors.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
build="${TMPDIR:-/tmp}/xpugraph-gpu-build"
package="$build/package"
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$(command -v python3)" -DXPUGRAPH_SYCL=OFF
cmake --build "$build" -j"$(nproc)"
rm -rf "$package" && mkdir -p "$package"
cp -r "$root/python/xpugraph" "$package/" && cp "$build"/_C*.so "$package/xpugraph/"
export PYTHONPATH="$package" PYTHONUNBUFFERED=1
[[ $# -eq 0 ]] || exec python3 "$root/bench/gpu.py" "$@"
