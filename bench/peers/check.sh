#!/usr/bin/env bash
# Builds the library and the probe and runs the side-by-side benchmark once with tiny sizes: everything that is
# installed must run and give outputs within bounds. Without Python or numpy it says so and is content. Options go to
# dense.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
  echo "skipped: side-by-side benchmark: $python is not installed"
  exit 0
fi
if ! "$python" -c 'import numpy' 2>/dev/null; then
  echo "skipped: side-by-side benchmark: $python has no numpy"
  exit 0
fi
cargo build --release -p iceformer-ffi -p iceformer-peak
"$python" bench/peers/dense.py --quick --check "$@"
