#include "repeat.h"

#include <math.h>
#include <stdlib.h>

/* Angles of the pairs of a row, `positions` further on. */
static void angles(double *cosines, double *sines, size_t dim, double base, size_t positions) {
  for (size_t i = 0; i < dim / 2; i++) {
    double angle = (double)positions * pow(base, -2.0 * (double)i / (double)dim);
    cosines[i] = cos(angle);
    sines[i] = sin(angle);
  }
}

static void turn(double *row, const double *cosines, const double *sines, size_t dim) {
  for (size_t i = 0; i < dim / 2; i++) {
    double a = row[2 * i], b = row[2 * i + 1];
    row[2 * i] = a * cosines[i] - b * sines[i];
    row[2 * i + 1] = a * sines[i] + b * cosines[i];
  }
}

float *repeat_rows(ref_rows rows, size_t heads, size_t copies, double rope_base) {
  size_t n = rows.rows, dim = rows.cols;
  double *row = malloc(2 * dim * sizeof *row), *cosines = row + dim, *sines = cosines + dim / 2;
  float *out = row != NULL ? malloc(heads * copies * n * dim * sizeof *out) : NULL;
  /* All rows of a copy are turned by the same angles: as far as the copy stands from the first. */
  for (size_t c = 0; out != NULL && c < copies; c++) {
    if (rope_base > 0) angles(cosines, sines, dim, rope_base, c * n);
    for (size_t h = 0; h < heads; h++) {
      ref_rows head = rows;
      head.data = (const unsigned char *)rows.data + h * n * dim * st_dtype_size(rows.dtype);
      for (size_t r = 0; r < n; r++) {
        ref_row(&head, r, row);
        if (rope_base > 0 && c > 0) turn(row, cosines, sines, dim);
        float *to = out + ((h * copies + c) * n + r) * dim;
        for (size_t i = 0; i < dim; i++) to[i] = (float)row[i];
      }
    }
  }
  free(row);
  return out;
}
