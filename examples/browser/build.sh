#!/bin/sh
# Build a site of a program that `byoc export-c` wrote: build.sh PROGRAM SITE
set -eu
[ $# = 2 ] || { echo "usage: build.sh PROGRAM SITE" >&2; exit 1; }
[ -f "$1/program.json" ] || { echo "$1: is no program of byoc export-c" >&2; exit 1; }
here=$(dirname "$0")
mkdir -p "$2"
sources=$(find "$1" -maxdepth 1 -name '*.c' ! -name main.c)
# A reactor has functions to call and no main; what is exported is all that is kept.
exports="reserve start run explain find_input find_output count_input_bytes count_output_bytes"
options=""
for name in $exports; do options="$options -Wl,--export=$name"; done
# shellcheck disable=SC2086 - words are options
clang --target=wasm32-wasi -mexec-model=reactor -O3 -msimd128 -std=c99 -Wall -Wextra -I"$1" $options \
    "$here/app.c" $sources -o "$2/model.wasm"
cp "$1/weights.bin" "$1/sample.bin" "$here/index.html" "$here/model.mjs" "$2/"
