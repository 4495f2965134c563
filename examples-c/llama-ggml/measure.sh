#!/usr/bin/env bash
# Speed of the llama.cpp plugin on a model: attention of a layer and the whole prompt, single tokens after it; the host's own kernel,
# exact and accelerated. After check.sh, on a quiet machine, pinned to one core.
#
#   measure.sh MODEL TEXT [THREADS]    TEXT: a file, or line-retrieval prompts (.jsonl), or a folder of lines-1k.jsonl .. lines-16k.jsonl,
#                                      which are asked, too
#
# LENGTHS  4096,8192,16384; beyond the length of the training with BENCH_YARN=2
# MODES    host,exact,auto
# CPU_TIME 1: processor time of one thread in place of the clock's, for a machine that others use, too
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$here/../../$target ;; esac
cache=${ICE_LLAMA_CACHE:-$target/llama-ggml}
libraries=$(dirname "$(ls "$cache"/linux-*/package/bins/*/libggml-base.so | head -1)")
model=$1 text=$2 threads=${3:-1}
export BENCH_THREADS=$threads
cores=${CORES:-0}
[ "$threads" -eq 1 ] || cores=${CORES:-0-$((threads - 1))}
run() { taskset -c "$cores" env ${CPU_TIME:+LD_PRELOAD="$cache/build/libcpu_clock.so"} "$cache/build/bench" "$1" "$libraries" "$cache/build/libggml-iceformer.so" "$model" "${@:2}" 2>/dev/null; }

file=$text
[ ! -d "$text" ] || file=$text/lines-16k.jsonl
run time "$file" "${MODES:-host,exact,auto}" "${LENGTHS:-4096,8192,16384}" "$threads"
[ -d "$text" ] || exit 0
echo
echo "| tokens | mode | right | seconds |"
echo "|---|---|---|---|"
for length in 1k 2k 4k 8k 16k; do
  run lines "$text/lines-$length.jsonl" host,auto "${COUNT:-50}"
done
