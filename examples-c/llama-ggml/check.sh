#!/usr/bin/env bash
# The llama.cpp plugin in a stock llama.cpp.
#
#   check.sh         seconds to a few minutes: the release binaries of the npm package @node-llama-cpp, headers from the
#                    source that node-llama-cpp carries; skipped with a line where these cannot be had
#   check.sh chat    some minutes more: node-llama-cpp itself, by npm. A saved state restored, two sequences at once, a shifted context, a
#                    chat session; without the plugin, exact and accelerated
#   check.sh server  a few minutes: llama.cpp's server of the PyPI package xllamacpp (a wheel; headers from its source package), two clients
#                    at once; without the plugin, exact and accelerated
#   check.sh long    these, and llama-perplexity, llama-bench and llama-server built from the PyPI source package of llama-cpp-python
#                    (half an hour on two cores); LLAMA_SOURCE and LLAMA_BUILD name a tree and a build that exist already
#
# ICE_LLAMA_CACHE  where packages and builds are kept; default: llama-ggml in cargo's target folder
# ICE_TEST_THREADS  threads of llama.cpp's programs; default 2
# ICE_TEST_MODEL   a model in GGUF form; default: ice-tiny beside the checkout, else a random one made by the test
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
workspace=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$workspace/$target ;; esac
cache=${ICE_LLAMA_CACHE:-$target/llama-ggml}
version=3.22.1 # of the npm packages

skip() {
  printf 'llama.cpp plugin: skipped: %s\n' "$*"
  exit 0
}
stop() {
  printf 'llama.cpp plugin: failed: %s\n' "$*" >&2
  exit 1
}
quiet() { # a command, its output only if it fails
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    tail -40 "$log" >&2
    stop "$*"
  fi
  rm -f "$log"
}

for tool in cmake c++ git; do
  command -v "$tool" >/dev/null || skip "$tool is missing"
done
[ "$(uname -s)" = Linux ] || skip "the packages used here are for Linux"
mkdir -p "$cache"
archive=$target/release/libiceformer.a
quiet env -C "$workspace" CARGO_TARGET_DIR="$target" cargo build --release -p iceformer-ffi

model_for() { # a model for the tests of $1, a build folder
  local beside=$workspace/../shared/models/ice-tiny/ice-tiny-f16.gguf
  if [ -n "${ICE_TEST_MODEL:-}" ]; then
    model=$ICE_TEST_MODEL
  elif [ "${2:-}" = trained ] && [ -f "$beside" ]; then
    model=$beside
  else
    model=$1/random.gguf
    "$1/memory_test" model "$model"
  fi
}

stock() { # the npm package's libraries and the plugin against them
  case $(uname -m) in
    x86_64) package=linux-x64 ;;
    aarch64) package=linux-arm64 ;;
    *) skip "no package for $(uname -m)" ;;
  esac
  libraries=$cache/$package-$version/package/bins/$package
  source=$cache/llama.cpp-$version
  if [ ! -e "$libraries/libggml-base.so" ] || [ ! -e "$source/ggml/src/ggml-backend-impl.h" ]; then
    command -v npm >/dev/null || skip "npm is missing"
    (cd "$cache" && timeout 300 npm pack --silent "@node-llama-cpp/$package@$version" "node-llama-cpp@$version" >/dev/null 2>&1) ||
      skip "npm cannot fetch @node-llama-cpp/$package $version"
    rm -rf "$cache/$package-$version" "$source"
    mkdir -p "$cache/$package-$version" "$cache/source"
    quiet tar xzf "$cache/node-llama-cpp-$package-$version.tgz" -C "$cache/$package-$version"
    quiet tar xzf "$cache/node-llama-cpp-$version.tgz" -C "$cache/source" package/llama/gitRelease.bundle
    quiet git clone -q "$cache/source/package/llama/gitRelease.bundle" "$source"
    rm -rf "$cache/source" "$cache"/*.tgz
  fi
  build=$cache/build
  quiet cmake -S "$here" -B "$build" -DLLAMA_SOURCE="$source" -DLLAMA_LIBRARIES="$libraries" -DICEFORMER_LIBRARY="$archive"
  quiet cmake --build "$build" --parallel 2
  plugin=$build/libggml-iceformer.so
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
}

short() {
  stock
  ggml=$(sed -nE 's/^set\(GGML_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)\)/\2/p' "$source/ggml/CMakeLists.txt" | paste -sd.)
  other=9${ggml#?}
  echo "llama.cpp plugin: ggml $ggml, $package $version"
  "$build/ops_test" "$libraries" "$plugin" 100 2>"$work/log" || { grep FAILED "$work/log" >&2; stop "the op by itself"; }
  "$build/helper_test" "$libraries" 2>"$work/log" || { cat "$work/log" >&2; stop "iceformer-ggml.h"; }
  model_for "$build"

  # A host of another version is refused with a line; settings that cannot be understood are named.
  sed "s/${ggml//./\\.}/$other/g" "$plugin" >"$work/other.so"
  if "$build/memory_test" auto "$libraries" "$work/other.so" "$model" >"$work/log" 2>&1; then
    stop "a plugin for another version was loaded"
  fi
  grep -q "iceformer: not used: compiled for ggml $other, running in ggml $ggml" "$work/log" || { cat "$work/log" >&2; stop "no word about the version"; }
  ICE_TOLERANCE=much ICE_MODE=fast ICE_LAYERS=1-x ICE_THREADS=few "$build/memory_test" auto "$libraries" "$plugin" "$model" >"$work/log" 2>&1 || stop "flash attention on auto"
  for name in ICE_TOLERANCE=much ICE_MODE=fast ICE_LAYERS=1-x ICE_THREADS=few 'mode auto, tolerance 0.05, layers all' 'use `-fa on`'; do
    grep -q "$name" "$work/log" || stop "no word about $name"
  done

  # Every step of a cache's life: the stock host, then the plugin in its modes. The host keeps sums in 16 bits and queries of
  # quantised caches in 8, which is what its distance comes from; a quantised cache rounds every difference up again.
  "$build/memory_test" run "$libraries" - "$model" "$work/stock" 400 2>/dev/null
  check() { # settings, what it is compared with, most
    env ICE_THREADS=2 ${1} "$build/memory_test" run "$libraries" "$plugin" "$model" "$work/out" 400 2>"$work/log" || { cat "$work/log" >&2; stop "$1"; }
    "$build/memory_test" compare "$work/$2" "$work/out" "$3" || stop "$1 against $2"
  }
  check "ICE_TOLERANCE=0" stock 0.06
  mv "$work/out" "$work/exact"
  check "ICE_MODE=accelerated ICE_TOLERANCE=0.000001" exact 0.03
  check "ICE_MODE=accelerated" exact 0.15

  # Statistics: a line a layer, what was measured, memory.
  ICE_STATS=1 ICE_MODE=accelerated "$build/memory_test" run "$libraries" "$plugin" "$model" "$work/out" 400 >"$work/log" 2>&1 || stop "ICE_STATS=1"
  grep -Eq '^iceformer:  +[0-9]+  accelerated +[0-9]+ .* %' "$work/log" || { cat "$work/log" >&2; stop "no line of a layer"; }
  grep -Eq '^iceformer: attention of prompts .* \(exact .* times\).*calls computed both ways\); [0-9]*[1-9][0-9]*\.[0-9] MiB' "$work/log" ||
    { cat "$work/log" >&2; stop "no summary"; }

  # Node loads llama.cpp privately: the plugin finds ggml there without being told where it is.
  if command -v node >/dev/null; then
    GGML_BACKEND_PATH=$plugin node -e 'const path = process.argv[1]; require(path + "/llama-addon.node").loadBackends(path)' "$libraries" >"$work/log" 2>&1 ||
      { cat "$work/log" >&2; stop "Node"; }
    grep -q "^iceformer .*, for ggml $ggml\|^iceformer .* for ggml $ggml;" "$work/log" || { cat "$work/log" >&2; stop "Node loads no plugin"; }
  else
    echo "skipped: Node is not installed"
  fi

  # Quality on the trained model, where it lies beside the checkout.
  local beside=$workspace/../shared/models/ice-tiny/ice-tiny-f16.gguf
  if [ -f "$beside" ] && command -v python3 >/dev/null; then
    CARGO_TARGET_DIR=$target ICE_LLAMA_CACHE=$cache python3 "$here/quality.py" short "$beside" --results "$work/quality.jsonl" >"$work/log" 2>&1 ||
      { cat "$work/log" >&2; stop "quality"; }
    grep '^| .*auto' "$work/log"
  else
    echo "skipped: quality, no model beside the checkout"
  fi
  echo "llama.cpp plugin: ok"
}

chat() {
  command -v node >/dev/null || skip "node is missing"
  command -v python3 >/dev/null || skip "python3 is missing"
  stock
  model_for "$build" trained
  case $model in *random.gguf) skip "a chat needs a model with a vocabulary: ICE_TEST_MODEL" ;; esac
  local project=$cache/node-project mode
  if [ ! -d "$project/node_modules/node-llama-cpp" ]; then
    mkdir -p "$project"
    (cd "$project" && npm init -y >/dev/null && npm install --silent --ignore-scripts --no-audit --no-fund "node-llama-cpp@$version") ||
      skip "npm cannot install node-llama-cpp $version"
  fi
  find "$source/docs" -name '*.md' | sort | { xargs cat 2>/dev/null || true; } | head -c 60000 >"$work/text"
  for mode in none exact auto; do
    case $mode in none) set -- ;; *) set -- GGML_BACKEND_PATH="$plugin" ICE_MODE=$mode ICE_STATS=1 ;; esac
    env "$@" node "$here/test/chat.mjs" "$project" "$model" "$work/text" >"$work/$mode.json" 2>"$work/$mode.log" ||
      { tail -20 "$work/$mode.log" >&2; stop "node-llama-cpp, $mode"; }
  done
  grep -Eq 'attention ops: [1-9][0-9]* accelerated' "$work/auto.log" || stop "node-llama-cpp got no accelerated attention"
  grep -Eq 'attention ops: 0 accelerated, [1-9]' "$work/exact.log" || stop "node-llama-cpp got no exact attention"
  python3 - "$work" <<'PY' || stop "node-llama-cpp's texts"
import json, sys
modes = {m: json.load(open(f"{sys.argv[1]}/{m}.json")) for m in ("none", "exact", "auto")}
wrong = []
for name, host in modes["none"].items():
    same = {m: next((i for i, (a, b) in enumerate(zip(t[name], host)) if a != b), min(len(t[name]), len(host))) for m, t in modes.items()}
    print(f"{name}: {len(host)} characters; like the host's: exact {same['exact']}, auto {same['auto']}")
    wrong += [f"{m} {name}: nothing" for m, t in modes.items() if not t[name].strip()]
# A restored cache is the same cache.
wrong += [f"{m}: another text after the state was restored" for m, t in modes.items() if t["plain"] != t["restored"]]
sys.exit("; ".join(wrong) or 0)
PY
  echo "llama.cpp plugin, node-llama-cpp: ok"
}

server() {
  command -v python3 >/dev/null || skip "python3 is missing"
  local version=2026.10.11549 mode folder
  folder=$cache/xllamacpp-$version
  source=$folder/thirdparty/llama.cpp
  if [ ! -e "$source/include/llama.h" ]; then
    (cd "$cache" && python3 -m pip -q download --no-deps --no-binary xllamacpp "xllamacpp==$version" -d . >/dev/null 2>&1) ||
      skip "pip cannot fetch the source of xllamacpp $version"
    quiet tar xzf "$folder.tar.gz" -C "$cache"
    rm -f "$folder.tar.gz"
  fi
  if [ ! -e "$folder/venv/ready" ]; then
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" -q install --no-deps --only-binary xllamacpp "xllamacpp==$version" >/dev/null 2>&1 || skip "no wheel of xllamacpp $version"
    touch "$folder/venv/ready"
  fi
  build=$cache/build-server
  quiet cmake -S "$here" -B "$build" -DLLAMA_SOURCE="$source" -DICEFORMER_LIBRARY="$archive"
  quiet cmake --build "$build" --parallel 2
  plugin=$build/libggml-iceformer.so
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  model_for "$cache/build" trained
  case $model in *random.gguf) skip "the server needs a model with a vocabulary: ICE_TEST_MODEL" ;; esac
  find "$source/ggml/src" "$source/src" -maxdepth 1 -name '*.cpp' | sort | { xargs cat 2>/dev/null || true; } | head -c 60000 >"$work/text"
  for mode in none exact auto; do
    case $mode in none) set -- ;; *) set -- "$plugin" ;; esac
    ICE_MODE=$mode ICE_STATS=1 BENCH_THREADS=${ICE_TEST_THREADS:-2} "$folder/venv/bin/python" "$here/test/server.py" "$model" "$work/text" "$@" \
      >"$work/$mode" 2>"$work/$mode.log" || { tail -20 "$work/$mode.log" >&2; stop "llama.cpp's server, $mode"; }
  done
  grep -Eq 'attention ops: [1-9][0-9]* accelerated' "$work/auto.log" || stop "llama.cpp's server got no accelerated attention"
  grep -Eq 'attention ops: 0 accelerated, [1-9]' "$work/exact.log" || stop "llama.cpp's server got no exact attention"
  python3 - "$work" <<'PY' || stop "texts of llama.cpp's server"
import json, sys
modes = {m: [json.loads(line) for line in open(f"{sys.argv[1]}/{m}")] for m in ("none", "exact", "auto")}
wrong = []
same = lambda a, b: next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
# Rounding decides ties, so that texts differ, those of the host from what its slot kept, too. What the host likes best is liked elsewhere.
def nats(a, b):
    best = max(a, key=a.get)
    return abs(a[best] - b.get(best, -99.0))
for m, (first, again) in modes.items():
    for client in (0, 1):
        one, later = (r["answers"][client] for r in (first, again))
        host = modes["none"][0]["answers"][client]
        far = [nats(host["first"], a["first"]) for a in (one, later)]
        print(f"{m}, client {client + 1}, {one['prompt']} tokens: {one['pieces']} pieces, {len(one['text'])} characters; like the host's: "
              f"{same(one['text'], host['text'])}; again from the slot: {same(one['text'], later['text'])}; the host's first token: "
              f"{far[0]:.3f} and {far[1]:.3f} nats from the host's")
        wrong += [f"{m}: too few pieces"] if min(one["pieces"], later["pieces"]) < 3 else []
        wrong += [f"{m}: the slot kept nothing"] if later["prompt"] > 8 else []
        wrong += [f"{m}: another first token"] if max(far) > 0.5 else []
    print(f"{m}: both prompts and answers {first['seconds']} s, again from the slots {again['seconds']} s")
sys.exit("; ".join(wrong) or 0)
PY
  echo "llama.cpp plugin, llama.cpp's server in Python: ok"
}

long() {
  (chat) # which may skip
  (server)
  local threads=${ICE_TEST_THREADS:-2}
  command -v python3 >/dev/null || skip "python3 is missing"
  source=${LLAMA_SOURCE:-$cache/llama-cpp-python/vendor/llama.cpp}
  lb=${LLAMA_BUILD:-$cache/lb}
  if [ ! -e "$source/include/llama.h" ]; then
    python3 -m venv "$cache/venv"
    (cd "$cache" && venv/bin/pip -q download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36 -d .) || skip "pip cannot fetch llama-cpp-python"
    mkdir -p "$cache/llama-cpp-python"
    tar xzf "$cache/llama_cpp_python-0.3.36.tar.gz" -C "$cache/llama-cpp-python" --strip-components 1
  fi
  if [ ! -x "$lb/bin/llama-server" ]; then
    cmake -S "$source" -B "$lb" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON -DLLAMA_OPENSSL=OFF \
      -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_APP=OFF
    cmake --build "$lb" --parallel 2 --target ggml ggml-cpu llama llama-bench llama-perplexity llama-completion llama-server
  fi
  build=$cache/build-long
  quiet cmake -S "$here" -B "$build" -DLLAMA_SOURCE="$source" -DLLAMA_LIBRARIES="$lb/bin" -DICEFORMER_LIBRARY="$archive"
  quiet cmake --build "$build" --parallel 2
  plugin=$build/libggml-iceformer.so
  work=$(mktemp -d)
  server=
  trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT
  model_for "$build" trained
  case $model in *random.gguf) skip "the programs need a model with a vocabulary: ICE_TEST_MODEL" ;; esac

  # Perplexity over contexts of 4096, stock and with the plugin.
  find "$source/src" "$source/ggml/src" -maxdepth 1 -name '*.cpp' | sort | { xargs cat 2>/dev/null || true; } | head -c 60000 >"$work/text"
  ppl() { # the program's log, stock or not, sometimes loses its last lines at the end
    local value
    for _ in 1 2 3 4 5; do
      value=$(env "$@" "$lb/bin/llama-perplexity" -m "$model" -f "$work/text" -c 4096 -b 512 -t "$threads" -fa on 2>&1 |
        sed -n 's/.*Final estimate: PPL = \([0-9.]*\).*/\1/p')
      [ -z "$value" ] || break
    done
    echo "$value"
  }
  stock=$(ppl A=1)
  exact=$(ppl GGML_BACKEND_PATH="$plugin" ICE_TOLERANCE=0)
  fast=$(ppl GGML_BACKEND_PATH="$plugin")
  echo "llama-perplexity, contexts of 4096: stock $stock, exact $exact, accelerated $fast"
  python3 - "$stock" "$exact" "$fast" <<'PY' || stop "perplexity"
import sys
stock, exact, fast = map(float, sys.argv[1:])
sys.exit(abs(exact / stock - 1) > 0.001 or fast / stock - 1 > 0.01)
PY

  # llama-bench names the backend and runs.
  for p in "" "$plugin"; do
    env ${p:+GGML_BACKEND_PATH="$p"} "$lb/bin/llama-bench" -m "$model" -p 4096 -n 16 -t "$threads" -fa 1 -r 1 2>/dev/null | grep -E 'pp4096|tg16' || stop "llama-bench"
  done

  # Two clients at once, each in a slot of its own; then the same again, from what the slots keep.
  GGML_BACKEND_PATH=$plugin ICE_STATS=1 "$lb/bin/llama-server" -m "$model" -c 8192 -np 2 -t "$threads" -fa on --port 18411 --chat-template chatml >"$work/server" 2>&1 &
  server=$!
  python3 - <<'PY' || { tail -20 "$work/server" >&2; stop "llama-server"; }
import concurrent.futures, json, time, urllib.request
def ask(word):
    body = json.dumps({"messages": [{"role": "user", "content": f"import {word}\n" * 900}], "stream": True, "max_tokens": 24, "temperature": 0}).encode()
    request = urllib.request.Request("http://127.0.0.1:18411/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return sum(line.startswith(b"data: {") for line in answer)
for attempt in range(120):
    try:
        urllib.request.urlopen("http://127.0.0.1:18411/health", timeout=2)
        break
    except OSError:
        time.sleep(1)
with concurrent.futures.ThreadPoolExecutor(2) as clients:
    pieces = [list(clients.map(ask, ("os", "re"))) for _ in range(2)]
print("llama-server: two clients at once, streamed pieces, twice:", pieces)
assert min(map(min, pieces)) >= 3
PY
  kill "$server"
  wait "$server" 2>/dev/null || true
  server=
  grep 'iceformer:.*attention ops' "$work/server" | tail -1
  grep -Eq 'attention ops: [1-9][0-9]* accelerated' "$work/server" || stop "llama-server got no accelerated attention"
  echo "llama.cpp plugin, long form: ok"
}

case ${1:-short} in
  short) short ;;
  chat) chat ;;
  server) server ;;
  long) long ;;
  *) stop "usage: check.sh [chat|server|long]" ;;
esac
