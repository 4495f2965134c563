"""llama.cpp's server as the Python package xllamacpp carries it, and two clients at once, each in a slot of its own. Then the same
again, from what the slots keep. The texts that they got, and logarithms of the likeliest first tokens' probabilities, as JSON.

    server.py MODEL TEXT [PLUGIN]

BENCH_THREADS  threads of llama.cpp; default 2
"""

import concurrent.futures
import ctypes
import json
import os
import pathlib
import sys
import time
import urllib.request

import xllamacpp

PROMPT = 7000  # characters, some 2,100 tokens or more
WRITTEN, LIKELIEST = 32, 20

model, text = sys.argv[1], pathlib.Path(sys.argv[2]).read_text(encoding="utf-8", errors="replace")
if len(sys.argv) > 3:
    library = next(pathlib.Path(xllamacpp.__file__).parent.glob("*.so"))
    load = ctypes.CDLL(str(library)).ggml_backend_load
    load.restype, load.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    if not load(sys.argv[3].encode()):
        sys.exit("the plugin was not loaded")
params = xllamacpp.CommonParams()
params.model.path = model
params.n_ctx, params.n_parallel = 8192, 2
params.kv_unified = False
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(os.environ.get("BENCH_THREADS", "2"))
params.port = 0
server = xllamacpp.Server(params)


def ask(number):
    """Pieces, as they came."""
    words = {"prompt": text[number * PROMPT:(number + 1) * PROMPT], "n_predict": WRITTEN, "temperature": 0, "stream": True, "id_slot": number,
             "n_probs": LIKELIEST}
    request = urllib.request.Request(server.listening_address + "/completion", json.dumps(words).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=900) as answer:
        pieces = [json.loads(line[len(b"data: "):]) for line in answer if line.startswith(b"data: ")]
    timings = pieces[-1]["timings"]
    first = next(p["completion_probabilities"] for p in pieces if p.get("completion_probabilities"))[0]["top_logprobs"]
    return {"text": "".join(p["content"] for p in pieces), "pieces": len(pieces), "cached": timings["cache_n"], "prompt": timings["prompt_n"],
            "first": {t["id"]: t["logprob"] for t in first}}


with concurrent.futures.ThreadPoolExecutor(2) as clients:
    for _ in range(2):
        begin = time.monotonic()
        answers = list(clients.map(ask, (0, 1)))
        print(json.dumps({"answers": answers, "seconds": round(time.monotonic() - begin, 1)}), flush=True)
