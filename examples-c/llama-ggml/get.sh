#!/usr/bin/env bash
# Builds the llama.cpp plugin for the llama.cpp that you have, against the headers of exactly that version, and says what to set.
#
#   get.sh node [PROJECT]        node-llama-cpp (npm) in PROJECT/node_modules; headers: the source that the package carries
#   get.sh python [PYTHON]       llama-cpp-python (PyPI) of that interpreter; headers: its source package, by pip
#   get.sh archive FOLDER [TAG]  an unpacked release archive of llama.cpp; headers: `git clone` of the tag that llama-cli names
#   get.sh source TREE           a source tree that you build yourself
#
# OUT  folder for headers and plugin; default: build-llama in the working directory
# Needed: Linux, CMake, a C++17 compiler, Rust (cargo), git; pip for python.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${OUT:-build-llama}
mkdir -p "$out"
out=$(cd "$out" && pwd)

stop() {
  printf 'get.sh: %s\n' "$*" >&2
  exit 1
}
usage() {
  sed -n '4,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}
say() { # a command, then run it: whoever wants can run it alone
  printf '+ %s\n' "$*" >&2
  "$@"
}
version_of() { # a tree's ggml version
  sed -nE 's/^set\(GGML_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)\)/\2/p' "$1/ggml/CMakeLists.txt" | paste -sd.
}
library_in() { # the first libggml-base of some folders
  local found
  for folder in "$@"; do
    for found in "$folder"/libggml-base.so*; do
      [ -e "$found" ] && echo "$found" && return
    done
  done
}

for tool in cmake c++ cargo git; do
  command -v "$tool" >/dev/null || stop "$tool is missing"
done
[ "$(uname -s)" = Linux ] || stop "the plugin is for Linux"

library= run=
case ${1:-} in
  node)
    package=${2:-.}/node_modules/node-llama-cpp
    [ -d "$package" ] || stop "no $package: npm install node-llama-cpp"
    version=$(sed -nE 's/^ *"version": "([^"]+)".*/\1/p' "$package/package.json" | head -1)
    tree=$out/llama.cpp-node-$version
    bundle=$package/llama/gitRelease.bundle
    if [ ! -e "$tree/include/llama.h" ]; then
      [ -e "$bundle" ] || stop "$bundle is missing: another node-llama-cpp than those tested; use: get.sh source TREE"
      say git clone -q "$bundle" "$tree"
    fi
    case $(uname -m) in x86_64) arch=x64 ;; aarch64) arch=arm64 ;; *) arch=$(uname -m) ;; esac
    library=$(library_in "${2:-.}/node_modules/@node-llama-cpp/linux-$arch/bins"/linux-* "$package"/llama/localBuilds/*/Release)
    run='node program.mjs        # with: await model.createContext({contextSize: 16384, flashAttention: true})'
    ;;
  python)
    python=${2:-python3}
    version=$("$python" -c 'import importlib.metadata as m; print(m.version("llama-cpp-python"))' 2>/dev/null) ||
      stop "$python has no llama-cpp-python: $python -m pip install llama-cpp-python"
    version=${version%%+*} # builds for an accelerator add to it
    tree=$out/llama_cpp_python-$version/vendor/llama.cpp
    if [ ! -e "$tree/include/llama.h" ]; then
      (cd "$out" && say "$python" -m pip download -q --no-deps --no-binary llama-cpp-python "llama-cpp-python==$version" -d .)
      say tar xzf "$out/llama_cpp_python-$version.tar.gz" -C "$out"
    fi
    folder=$("$python" -c 'import importlib.util as u, pathlib as p; print(p.Path(u.find_spec("llama_cpp").origin).parent / "lib")')
    library=$(library_in "$folder" "$folder/../bin" "$folder/..")
    run="$python program.py      # with, before the first Llama(..., n_ctx=16384, flash_attn=True):
                            #   import ctypes; ctypes.CDLL('$folder/libggml.so').ggml_backend_load(b'$out/libggml-iceformer.so')"
    ;;
  archive)
    folder=${2:-}
    [ -d "$folder" ] || usage
    program=$(find "$folder" -name llama-cli -type f | head -1)
    tag=${3:-}
    if [ -z "$tag" ]; then
      [ -n "$program" ] || stop "no llama-cli in $folder: name the tag, as the archive is called: get.sh archive $folder b1234"
      tag=$("$program" --version 2>&1 | sed -nE 's/^version: ([0-9.]+).*/\1/p' | head -1)
      case $tag in '') stop "llama-cli --version names no version: name the tag" ;; *.*) tag=v$tag ;; *) tag=b$tag ;; esac
    fi
    tree=$out/llama.cpp-$tag
    [ -e "$tree/include/llama.h" ] ||
      say git clone -q --depth 1 --branch "$tag" "${LLAMA_REPOSITORY:-https://github.com/ggml-org/llama.cpp}" "$tree"
    library=$(library_in "$(dirname "${program:-$folder/x}")" "$folder" "$folder"/*)
    run="llama-server -m model.gguf -c 16384 -fa on"
    ;;
  source)
    tree=${2:-}
    [ -e "$tree/include/llama.h" ] || usage
    tree=$(cd "$tree" && pwd)
    library=$(library_in "$tree/build/bin" "$tree/build/ggml/src")
    run="llama-server -m model.gguf -c 16384 -fa on      # of a build with: cmake -B build -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON"
    ;;
  *) usage ;;
esac

ggml=$(version_of "$tree")
[ -n "$ggml" ] || stop "$tree/ggml/CMakeLists.txt names no version of ggml"
if [ -z "$library" ]; then
  printf 'get.sh: no libggml-base found beside it; the plugin will say at its start whether the version fits\n' >&2
elif ! grep -aqF "$ggml" "$library"; then
  stop "$library is not of ggml $ggml, as the headers in $tree are. Name the version that runs: remove $tree and run this again with
another tag, or install the two in one version"
fi
say cmake -S "$here" -B "$out/cmake-$ggml" -DLLAMA_SOURCE="$tree" >/dev/null
say cmake --build "$out/cmake-$ggml" --target ggml-iceformer >/dev/null
cp "$out/cmake-$ggml/libggml-iceformer.so" "$out/libggml-iceformer.so"
cat <<END
Built for ggml $ggml. Run:
  export GGML_BACKEND_PATH=$out/libggml-iceformer.so
  $run
One line must appear at the start: "iceformer ...; for ggml $ggml; needs flash attention on ...".
END
