/* Small repeatable numbers for examples: same sequence everywhere. */
#ifndef EXAMPLES_RANDOM_H
#define EXAMPLES_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* Uniform in [-1, 1), by a 64-bit linear congruential generator's upper bits. */
static inline void random_fill(float *out, size_t n, uint64_t seed) {
  uint64_t x = seed * 2 + 1;
  for (size_t i = 0; i < n; i++) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    out[i] = (float)(x >> 40) / 8388608.0f - 1.0f;
  }
}

#endif
