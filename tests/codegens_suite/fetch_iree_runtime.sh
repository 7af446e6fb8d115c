#!/usr/bin/env bash
# Puts iree-run-module for aarch64 into FOLDER/aarch64, out of the wheel of the version that is installed.
set -euo pipefail
folder=$1
version=$(python -c 'from importlib.metadata import version; print(version("iree-base-runtime"))')
mkdir -p "$folder/aarch64" "$folder/wheel"
pip download --quiet --no-deps --only-binary=:all: --platform manylinux_2_28_aarch64 \
  --dest "$folder/wheel" "iree-base-runtime==$version"
python -m zipfile -e "$folder"/wheel/*.whl "$folder/wheel"
cp "$folder/wheel/iree/_runtime_libs/iree-run-module" "$folder/aarch64/"
chmod +x "$folder/aarch64/iree-run-module"
