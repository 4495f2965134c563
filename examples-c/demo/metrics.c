#include "metrics.h"

#include <math.h>
#include <stdlib.h>

void metrics_add(row_error *error, const float *out, const double *reference, size_t n) {
  for (size_t i = 0; i < n; i++) {
    double d = (double)out[i] - reference[i];
    error->difference += d * d;
    error->norm += reference[i] * reference[i];
  }
}

static double relative(const row_error *e) {
  if (e->norm == 0) return e->difference == 0 ? 0 : INFINITY;
  return sqrt(e->difference / e->norm);
}

/* NaN sorts last, so that it shows in the percentile instead of hiding anywhere. */
static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  if (isnan(x) || isnan(y)) return (isnan(x) != 0) - (isnan(y) != 0);
  return (x > y) - (x < y);
}

spread metrics_spread(const row_error *rows, size_t n, double *scratch) {
  spread s = {0, 0};
  if (n == 0) return s;
  for (size_t i = 0; i < n; i++) {
    scratch[i] = relative(&rows[i]);
    s.mean += scratch[i] / (double)n;
  }
  qsort(scratch, n, sizeof *scratch, ascending);
  size_t rank = n - n / 100; /* ceil(0.99 n) */
  s.p99 = scratch[rank - 1];
  return s;
}

double metrics_mass(const float *lse_sparse, const float *lse_exact, size_t n) {
  double sum = 0;
  size_t rows = 0;
  for (size_t i = 0; i < n; i++) {
    if (isinf(lse_exact[i])) continue;
    sum += exp((double)lse_sparse[i] - (double)lse_exact[i]);
    rows++;
  }
  return rows > 0 ? sum / (double)rows : 1;
}

double metrics_least(const double *values, size_t n) {
  double least = n > 0 ? values[0] : 0;
  for (size_t i = 1; i < n; i++) least = values[i] < least ? values[i] : least;
  return least;
}
