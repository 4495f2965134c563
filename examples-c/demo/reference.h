/* Exact attention in f64, written for being right: what the library's results are compared with. */
#ifndef DEMO_REFERENCE_H
#define DEMO_REFERENCE_H

#include "safetensors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows of one head, packed. */
typedef struct ref_rows {
  const void *data;
  st_dtype dtype;
  size_t rows, cols;
} ref_rows;

double ref_from_f16(uint16_t bits);

/* Row `row` as m->cols doubles. */
void ref_row(const ref_rows *m, size_t row, double *out);

/* out[i] = softmax(q[sample[i]] . k^T / sqrt(d)) v, n_sample rows of v.cols doubles. With `causal`, row r sees keys
 * 0..first + r. False when memory is short. */
bool ref_attention(ref_rows q, ref_rows k, ref_rows v, bool causal, size_t first, const size_t *sample, size_t n_sample,
                   double *out);

/* The weights of row `row` of q: k.rows doubles that sum to 1, 0 where a key is hidden. False when memory is short. */
bool ref_weights(ref_rows q, ref_rows k, bool causal, size_t first, size_t row, double *weights);

#endif
