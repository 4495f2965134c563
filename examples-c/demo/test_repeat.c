/* Repeated texts: copies keep their numbers, and rotated ones are what their positions make of them. */
#include "repeat.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 2, ROWS = 5, DIM = 6, COPIES = 3, ALL = ROWS * COPIES };
static const double BASE = 1000;

static int failures;
#define CHECK(x) ((x) ? (void)0 : (void)(printf("line %d: %s\n", __LINE__, #x), failures++))

static float any(size_t i) { return (float)((i * 37 + 11) % 101) / 50 - 1; }

/* One row at a position, from its numbers at position 0: the naive way. */
static void stand(const float *from, size_t position, float *to) {
  for (size_t i = 0; i < DIM; i += 2) {
    double angle = (double)position / pow(BASE, (double)i / DIM);
    to[i] = (float)((double)from[i] * cos(angle) - (double)from[i + 1] * sin(angle));
    to[i + 1] = (float)((double)from[i] * sin(angle) + (double)from[i + 1] * cos(angle));
  }
}

int main(void) {
  float plain[HEADS * ROWS * DIM], rotated[HEADS * ROWS * DIM], want[DIM];
  for (size_t i = 0; i < HEADS * ROWS * DIM; i++) plain[i] = any(i);
  for (size_t i = 0; i < HEADS * ROWS; i++) stand(plain + i * DIM, i % ROWS, rotated + i * DIM);

  ref_rows values = {plain, ST_F32, ROWS, DIM}, keys = {rotated, ST_F32, ROWS, DIM};
  float *v = repeat_rows(values, HEADS, COPIES, 0), *k = repeat_rows(keys, HEADS, COPIES, BASE);
  CHECK(v != NULL && k != NULL);
  for (size_t h = 0; v != NULL && k != NULL && h < HEADS; h++) {
    for (size_t r = 0; r < ALL; r++) {
      const float *from = plain + (h * ROWS + r % ROWS) * DIM;
      CHECK(memcmp(v + (h * ALL + r) * DIM, from, sizeof want) == 0);
      stand(from, r, want);
      for (size_t i = 0; i < DIM; i++) CHECK(fabsf(k[(h * ALL + r) * DIM + i] - want[i]) < 1e-6f);
    }
  }
  free(v);
  free(k);
  printf("repeated texts: %d failures\n", failures);
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
