#!/usr/bin/env bash
# The figures of docs/llama.md: after check.sh, on a quiet machine, pinned to one core.
#
#   measure.sh <model.gguf> <folder of lines-4k.jsonl ..> <text file> [threads]
#
# Line-retrieval prompts, one JSON object with "prompt" and "answer" a line, give the text whose attention is timed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$here/../../$target ;; esac
cache=${ICE_LLAMA_CACHE:-$target/llama-ggml}
libraries=$(dirname "$(ls "$cache"/linux-*/package/bins/*/libggml-base.so | head -1)")
model=$1 data=$2 text=$3 threads=${4:-1}
export BENCH_THREADS=$threads
cores=0
[ "$threads" -eq 1 ] || cores=0-$((threads - 1))
run() { taskset -c "$cores" "$cache/build/bench" "$1" "$libraries" "$cache/build/libggml-iceformer.so" "$model" "${@:2}" 2>/dev/null; }

run time "$data/lines-16k.jsonl" host,exact,auto 4096,8192,16384 "$threads"
echo
echo "| tokens | mode | right | seconds |"
echo "|---|---|---|---|"
for length in 1k 2k 4k 8k 16k; do
  run lines "$data/lines-$length.jsonl" host,auto "${COUNT:-50}"
done
echo
echo "| tokens | mode | perplexity | against the host |"
echo "|---|---|---|---|"
for length in 8192 16384; do
  run perplexity "$text" host,exact,auto "$length"
done
