/* What both programs share: repeatable numbers, static memory, a report. */
#ifndef FREESTANDING_CHECKS_H
#define FREESTANDING_CHECKS_H

#include "startup.h"

#include <iceformer.h>

#define STATIC_MEMORY(name, bytes) static _Alignas(64) unsigned char name[bytes]

static inline int failed(const char *what, const char *why) {
  console_text("failed: ");
  console_text(what);
  console_text(": ");
  console_text(why);
  console_text("\n");
  return 1;
}

static inline void report(const char *what, uint32_t number, const char *unit) {
  console_text(what);
  console_number(number);
  console_text(unit);
}

/* Uniform in [-1, 1): the same sequence on every machine. */
static inline void random_fill(float *out, uint32_t n, uint64_t seed) {
  uint64_t x = seed * 2 + 1;
  for (uint32_t i = 0; i < n; i++) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    out[i] = (float)(uint32_t)(x >> 40) / 8388608.0f - 1.0f;
  }
}

#endif
