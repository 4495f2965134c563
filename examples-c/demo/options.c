#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: iceformer-demo [FILE] [options]\n"
    "\n"
    "Runs exact and accelerated attention on real queries, keys and values, layer by layer, and compares both with f64.\n"
    "Without FILE: two layers of SmolLM2-135M-Instruct, captured at 8,192 tokens, which come with the demo; the text stands\n"
    "twice, one after the other: 16,384 tokens.\n"
    "FILE is a capture of a model: safetensors with layer{l}.q [query heads, n, d] and layer{l}.k, layer{l}.v\n"
    "[KV heads, n, d], dtype F32, F16 or BF16; metadata \"causal\" (or \"layer{l}.causal\") = True makes row i see keys\n"
    "0..i. Of a GGUF file, a capture is made and run by: make -C examples-c demo MODEL=M.gguf\n"
    "\n"
    "  --rows N        use the first N tokens only\n"
    "  --repeat N      let the text stand N times, one after another (default: 2 without FILE, else 1); later copies have\n"
    "                  the queries, keys and values of the first, with queries and keys rotated on to their positions\n"
    "  --rope-base B   base of the rotary embedding, neighbouring elements turning together (default: what the file says)\n"
    "  --tolerance T   relative output error aimed at, 0 to 1 (default 0.05)\n"
    "  --threads N     threads inside one call (default 1)\n"
    "  --isa NAME      instruction set at most: scalar, neon, avx2, avx512 (default: the best of this machine)\n"
    "  --svg FILE      draw what one query attended to\n"
    "  --top-k         also run top-k attention, the published method\n"
    "  --keys K        keys each row keeps in top-k mode (default: max(min(n/200, 50), 30))\n"
    "  --help          this text\n";

static int wrong(const char *what, const char *value) {
  fprintf(stderr, "iceformer-demo: %s: %s (see --help)\n", what, value);
  return 0;
}

static int parse_count(const char *name, const char *text, uint64_t max, uint64_t *out) {
  char *end = NULL;
  errno = 0;
  unsigned long long x = strtoull(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end != 0 || errno != 0 || x == 0 || x > max) return wrong(name, text);
  *out = x;
  return 1;
}

static int parse_base(const char *name, const char *text, double *out) {
  char *end = NULL;
  double x = strtod(text, &end);
  if (end == text || *end != 0 || !(x > 1 && x < 1e12)) return wrong(name, text);
  *out = x;
  return 1;
}

static int parse_share(const char *name, const char *text, float *out) {
  char *end = NULL;
  float x = strtof(text, &end);
  if (end == text || *end != 0 || !(x > 0 && x <= 1)) return wrong(name, text);
  *out = x;
  return 1;
}

options_result options_parse(options *o, int argc, char **argv) {
  *o = (options){.threads = 1, .tolerance = 0.05f};
  for (int i = 1; i < argc; i++) {
    const char *name = argv[i];
    uint64_t x = 0;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
      fputs(help, stdout);
      return OPTIONS_HELP;
    }
    if (name[0] != '-') {
      if (o->path != NULL) return wrong("more than one file", name), OPTIONS_WRONG;
      o->path = name;
      continue;
    }
    if (strcmp(name, "--top-k") == 0) {
      o->top_k = true;
      continue;
    }
    const char *value = i + 1 < argc ? argv[i + 1] : "(no value)";
    int ok;
    if (strcmp(name, "--rows") == 0) {
      ok = parse_count(name, value, UINT32_MAX, &x);
      o->rows = x;
    } else if (strcmp(name, "--repeat") == 0) {
      ok = parse_count(name, value, 64, &x);
      o->repeat = x;
    } else if (strcmp(name, "--rope-base") == 0) {
      ok = parse_base(name, value, &o->rope_base);
    } else if (strcmp(name, "--keys") == 0) {
      ok = parse_count(name, value, UINT32_MAX, &x);
      o->keys = (uint32_t)x;
    } else if (strcmp(name, "--threads") == 0) {
      ok = parse_count(name, value, 1024, &x);
      o->threads = (uint32_t)x;
    } else if (strcmp(name, "--tolerance") == 0) {
      ok = parse_share(name, value, &o->tolerance);
    } else if (strcmp(name, "--isa") == 0 && i + 1 < argc) {
      o->isa = value;
      ok = 1;
    } else if (strcmp(name, "--svg") == 0 && i + 1 < argc) {
      o->svg = value;
      ok = 1;
    } else {
      ok = wrong("unknown option", name);
    }
    if (!ok) return OPTIONS_WRONG;
    i++;
  }
  return OPTIONS_RUN;
}
