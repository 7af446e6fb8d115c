#!/bin/sh
# Build the wheels of the provider that an index takes, into a folder: `sh tools/provider_wheels.sh dist`.
# `pip install build ziglang auditwheel` brings a compiler that links against the C library of 2014 (glibc
# 2.17) on any machine, and a program that reads from each wheel which systems have all that it needs.
set -eu
folder=${1:?the folder of the wheels}
python=$(command -v python) # the one that has ziglang: wheels are built in environments of their own
for machine in x86_64 aarch64; do
    export BYOC_CC="$python -m ziglang cc -target $machine-linux-gnu.2.17"
    export BYOC_WHEEL_PLATFORM="manylinux2014_$machine"
    python -m build --wheel --outdir "$folder" byoc/onnxrt/provider
    wheel=$(ls "$folder"/onnx_byoc_provider-*-"$BYOC_WHEEL_PLATFORM".whl)
    auditwheel show "$wheel" | tr '\n' ' ' | grep -q "consistent with the following *platform tag: *.*manylinux_2_17_$machine" || {
        echo "$wheel: it needs more than $BYOC_WHEEL_PLATFORM has" >&2
        auditwheel show "$wheel" >&2
        exit 1
    }
done
