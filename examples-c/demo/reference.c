#include "reference.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Rows worked on together, so that a key is decoded once for all of them. */
#define GROUP 32

double ref_from_f16(uint16_t h) {
  int exponent = (h >> 10) & 0x1F, fraction = h & 0x3FF;
  double x;
  if (exponent == 0x1F) x = fraction != 0 ? NAN : INFINITY;
  else if (exponent == 0) x = ldexp(fraction, -24);
  else x = ldexp(fraction | 0x400, exponent - 25);
  return (h & 0x8000) != 0 ? -x : x;
}

static double from_bf16(uint16_t h) {
  uint32_t bits = (uint32_t)h << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return (double)x;
}

void ref_row(const ref_rows *m, size_t row, double *out) {
  const unsigned char *data = (const unsigned char *)m->data + row * m->cols * st_dtype_size(m->dtype);
  for (size_t i = 0; i < m->cols; i++) {
    if (m->dtype == ST_F32) {
      float x;
      memcpy(&x, data + 4 * i, sizeof x);
      out[i] = (double)x;
    } else {
      uint16_t h;
      memcpy(&h, data + 2 * i, sizeof h);
      out[i] = m->dtype == ST_F16 ? ref_from_f16(h) : from_bf16(h);
    }
  }
}

static double dot(const double *a, const double *b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

/* Logits become weights that sum to 1. */
static void softmax(double *x, size_t n) {
  double max = -INFINITY, sum = 0;
  for (size_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
  for (size_t i = 0; i < n; i++) sum += x[i] = exp(x[i] - max);
  for (size_t i = 0; i < n; i++) x[i] /= sum;
}

static size_t keys_seen(size_t keys, bool causal, size_t position) {
  return causal && position + 1 < keys ? position + 1 : keys;
}

bool ref_attention(ref_rows q, ref_rows k, ref_rows v, bool causal, size_t first, const size_t *sample, size_t n_sample,
                   double *out) {
  double scale = 1 / sqrt((double)q.cols);
  double *queries = malloc(GROUP * q.cols * sizeof *queries);
  double *weights = malloc(GROUP * k.rows * sizeof *weights);
  double *row = malloc((k.cols > v.cols ? k.cols : v.cols) * sizeof *row);
  bool ok = queries != NULL && weights != NULL && row != NULL;
  for (size_t begin = 0; ok && begin < n_sample; begin += GROUP) {
    size_t group = n_sample - begin < GROUP ? n_sample - begin : GROUP, seen[GROUP];
    for (size_t i = 0; i < group; i++) {
      ref_row(&q, sample[begin + i], queries + i * q.cols);
      seen[i] = keys_seen(k.rows, causal, first + sample[begin + i]);
    }
    for (size_t j = 0; j < k.rows; j++) {
      ref_row(&k, j, row);
      for (size_t i = 0; i < group; i++) {
        if (j < seen[i]) weights[i * k.rows + j] = scale * dot(queries + i * q.cols, row, k.cols);
      }
    }
    for (size_t i = 0; i < group; i++) softmax(weights + i * k.rows, seen[i]);
    memset(out + begin * v.cols, 0, group * v.cols * sizeof *out);
    for (size_t j = 0; j < v.rows; j++) {
      ref_row(&v, j, row);
      for (size_t i = 0; i < group; i++) {
        if (j >= seen[i]) continue;
        double w = weights[i * k.rows + j], *to = out + (begin + i) * v.cols;
        for (size_t c = 0; c < v.cols; c++) to[c] += w * row[c];
      }
    }
  }
  free(queries);
  free(weights);
  free(row);
  return ok;
}

bool ref_weights(ref_rows q, ref_rows k, bool causal, size_t first, size_t row, double *weights) {
  double scale = 1 / sqrt((double)q.cols);
  size_t seen = keys_seen(k.rows, causal, first + row);
  double *query = malloc(q.cols * sizeof *query), *key = malloc(k.cols * sizeof *key);
  bool ok = query != NULL && key != NULL;
  if (ok) {
    ref_row(&q, row, query);
    memset(weights, 0, k.rows * sizeof *weights);
    for (size_t j = 0; j < seen; j++) {
      ref_row(&k, j, key);
      weights[j] = scale * dot(query, key, k.cols);
    }
    softmax(weights, seen);
  }
  free(query);
  free(key);
  return ok;
}
