/* Exact attention in f64, written for being right: what the library's results are compared with. */
#ifndef DEMO_REFERENCE_H
#define DEMO_REFERENCE_H

#include "safetensors.h"

#include <stdbool.h>
#include <stddef.h>

/* Rows of one head, packed. */
typedef struct ref_rows {
  const void *data;
  st_dtype dtype;
  size_t rows, cols;
} ref_rows;

/* out[i] = softmax(q[sample[i]] . k^T / sqrt(d)) v, n_sample rows of v.cols doubles. With `causal`, row r sees keys
 * 0..r. False when memory is short. */
bool ref_attention(ref_rows q, ref_rows k, ref_rows v, bool causal, const size_t *sample, size_t n_sample, double *out);

#endif
