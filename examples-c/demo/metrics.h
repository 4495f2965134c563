/* How far an output is from the reference. */
#ifndef DEMO_METRICS_H
#define DEMO_METRICS_H

#include <stddef.h>

/* Squared L2 norms of (out - reference) and of the reference, summed over one head or several. */
typedef struct row_error {
  double difference, norm;
} row_error;

typedef struct spread {
  double mean, p99;
} spread;

/* Adds one row of one head. */
void metrics_add(row_error *error, const float *out, const double *reference, size_t n);

/* Mean and 99th percentile (nearest rank) of the rows' relative L2 errors; `scratch` holds n doubles. */
spread metrics_spread(const row_error *rows, size_t n, double *scratch);

/* Mean share of the softmax mass that a sparse run kept: exp(lse_sparse - lse_exact) per row; rows that see no key are
 * left out. */
double metrics_mass(const float *lse_sparse, const float *lse_exact, size_t n);

double metrics_least(const double *values, size_t n); /* 0 of none */

#endif
