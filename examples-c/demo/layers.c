#include "layers.h"
#include "repeat.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool fail(model *m, uint64_t number, const char *what) {
  snprintf(m->file.message, sizeof m->file.message, "layer%" PRIu64 ": %s", number, what);
  return false;
}

static const st_tensor *part(const model *m, uint64_t number, const char *what) {
  char name[48];
  snprintf(name, sizeof name, "layer%" PRIu64 ".%s", number, what);
  return st_find(&m->file, name);
}

static const char *word(const model *m, uint64_t number, const char *what) {
  char key[48];
  snprintf(key, sizeof key, "layer%" PRIu64 ".%s", number, what);
  return st_metadata(&m->file, key);
}

/* "layer12.q" -> 12; the name must be written as this program would write it. */
static bool layer_number(const char *name, uint64_t *number) {
  char again[40];
  if (strncmp(name, "layer", 5) != 0 || name[5] < '0' || name[5] > '9') return false;
  *number = strtoull(name + 5, NULL, 10);
  snprintf(again, sizeof again, "layer%" PRIu64 ".q", *number);
  return strcmp(name, again) == 0;
}

static bool is_causal(const model *m, uint64_t number) {
  const char *value = word(m, number, "causal");
  if (value == NULL) value = st_metadata(&m->file, "causal");
  return value != NULL && (strcmp(value, "True") == 0 || strcmp(value, "true") == 0 || strcmp(value, "1") == 0);
}

/* Position of the first query: 0 without a word in the file. */
static bool first_query(const model *m, layer *l) {
  const char *value = word(m, l->number, "first");
  char *end = NULL;
  if (value == NULL) return true;
  unsigned long long x = strtoull(value, &end, 10);
  l->first = (size_t)x;
  return value[0] >= '0' && value[0] <= '9' && *end == 0 && x <= UINT32_MAX;
}

static bool check_tensor(model *m, layer *l, layer_part p) {
  const st_tensor *t = l->part[p], *scale = l->scale[p];
  if (t->dtype == ST_OTHER) return fail(m, l->number, "only F32, F16, BF16, and I8 with a scale can be read");
  if (t->dims != 3) return fail(m, l->number, "tensors must be [heads, tokens, dim]");
  for (int j = 0; j < 3; j++) {
    if (t->shape[j] == 0) return fail(m, l->number, "a tensor is empty");
    if (t->shape[j] > UINT32_MAX) return fail(m, l->number, "a tensor is too large");
  }
  if (t->dtype != ST_I8) {
    l->scale[p] = NULL;
  } else if (scale == NULL || scale->dtype != ST_F16 || scale->dims != 2 || scale->shape[0] != t->shape[0] ||
             scale->shape[1] != t->shape[1]) {
    return fail(m, l->number, "bytes need a scale in F16 for every row");
  }
  return true;
}

static bool check_layer(model *m, layer *l) {
  if (l->part[PART_K] == NULL || l->part[PART_V] == NULL) return fail(m, l->number, "keys or values are missing");
  for (int p = PART_Q; p <= PART_V; p++) {
    if (!check_tensor(m, l, (layer_part)p)) return false;
  }
  if (!first_query(m, l)) return fail(m, l->number, "the position of the first query is no number");
  const uint64_t *q = l->part[PART_Q]->shape, *k = l->part[PART_K]->shape, *v = l->part[PART_V]->shape;
  if (k[0] != v[0] || q[0] % k[0] != 0) return fail(m, l->number, "query heads must be a multiple of the KV heads");
  if (q[1] + l->first != k[1] || k[1] != v[1]) {
    return fail(m, l->number, "queries, keys and values differ in length");
  }
  if (q[2] != k[2]) return fail(m, l->number, "queries and keys differ in dimension");
  l->heads_q = (size_t)q[0];
  l->heads_kv = (size_t)k[0];
  l->rows = (size_t)k[1];
  l->dim_k = (size_t)q[2];
  l->dim_v = (size_t)v[2];
  l->causal = is_causal(m, l->number);
  return true;
}

static int by_number(const void *a, const void *b) {
  const layer *x = a, *y = b;
  return (x->number > y->number) - (x->number < y->number);
}

bool model_open(model *m, const char *path) {
  memset(m, 0, sizeof *m);
  m->copies = 1;
  if (!st_open(&m->file, path)) return false;
  m->layers = calloc(m->file.n_tensors + 1, sizeof *m->layers);
  bool ok = m->layers != NULL;
  if (!ok) snprintf(m->file.message, sizeof m->file.message, "out of memory");
  for (size_t i = 0; ok && i < m->file.n_tensors; i++) {
    uint64_t number;
    if (!layer_number(m->file.tensors[i].name, &number)) continue;
    layer *l = &m->layers[m->n_layers++];
    l->number = number;
    l->part[PART_Q] = &m->file.tensors[i];
    l->part[PART_K] = part(m, number, "k");
    l->part[PART_V] = part(m, number, "v");
    l->scale[PART_Q] = part(m, number, "q.scale");
    l->scale[PART_K] = part(m, number, "k.scale");
    l->scale[PART_V] = part(m, number, "v.scale");
    ok = check_layer(m, l);
  }
  if (ok && m->n_layers == 0) {
    snprintf(m->file.message, sizeof m->file.message, "holds no tensor named layer0.q, layer1.q, ...");
    ok = false;
  }
  if (!ok) {
    model_close(m);
    return false;
  }
  qsort(m->layers, m->n_layers, sizeof *m->layers, by_number);
  return true;
}

void model_close(model *m) {
  for (size_t i = 0; i < m->n_layers; i++) layer_unload(&m->layers[i]);
  free(m->layers);
  m->layers = NULL;
  m->n_layers = 0;
  st_close(&m->file);
}

/* Bytes times the factors of their rows. */
static float *scaled(model *m, const st_tensor *t, const st_tensor *scale) {
  size_t rows = (size_t)(t->shape[0] * t->shape[1]), cols = (size_t)t->shape[2];
  signed char *bytes = st_read(&m->file, t);
  unsigned char *factors = bytes != NULL ? st_read(&m->file, scale) : NULL;
  float *out = factors != NULL ? malloc(rows * cols * sizeof *out) : NULL;
  if (factors != NULL && out == NULL) snprintf(m->file.message, sizeof m->file.message, "out of memory");
  for (size_t i = 0; out != NULL && i < rows; i++) {
    float factor = (float)ref_from_f16((uint16_t)(factors[2 * i] | factors[2 * i + 1] << 8));
    for (size_t c = 0; c < cols; c++) out[i * cols + c] = factor * (float)bytes[i * cols + c];
  }
  free(bytes);
  free(factors);
  return out;
}

/* Whether the metadata say how queries and keys are rotated, in the one way that `repeat_rows` knows. */
static bool rotary_base(model *m, double *base) {
  const char *value = st_metadata(&m->file, "rope_base"), *layout = st_metadata(&m->file, "rope_layout"),
             *scaling = st_metadata(&m->file, "rope_scaling");
  char *end = NULL;
  if (value != NULL) *base = strtod(value, &end);
  if (value == NULL || end == value || *end != 0 || !(*base > 1 && *base < 1e12)) {
    snprintf(m->file.message, sizeof m->file.message, "does not say its rotary base, which --repeat needs (--rope-base)");
    return false;
  }
  if (layout == NULL || strcmp(layout, "interleaved") != 0 || (scaling != NULL && strcmp(scaling, "none") != 0)) {
    snprintf(m->file.message, sizeof m->file.message, "its positions are scaled or laid out in a way that --repeat does not know");
    return false;
  }
  return true;
}

bool model_repeat(model *m, size_t copies, double rope_base) {
  if (copies == 1) return true;
  if (rope_base <= 0 && !rotary_base(m, &rope_base)) return false;
  m->rope_base = rope_base;
  m->copies = copies;
  for (size_t i = 0; i < m->n_layers; i++) {
    layer *l = &m->layers[i];
    if (l->first > 0) return fail(m, l->number, "queries of the last tokens only cannot be repeated");
    if (l->dim_k % 2 != 0) return fail(m, l->number, "an odd dimension cannot be rotated");
    if (l->rows > UINT32_MAX / copies) return fail(m, l->number, "too many tokens");
    l->rows *= copies;
  }
  return true;
}

static void *load(model *m, layer *l, layer_part part) {
  const st_tensor *t = l->part[part], *scale = l->scale[part];
  void *once = scale != NULL ? scaled(m, t, scale) : st_read(&m->file, t), *all;
  if (once == NULL || m->copies == 1) return once;
  ref_rows rows = {once, scale != NULL ? ST_F32 : t->dtype, (size_t)t->shape[1], (size_t)t->shape[2]};
  all = repeat_rows(rows, (size_t)t->shape[0], m->copies, part == PART_V ? 0 : m->rope_base);
  if (all == NULL) snprintf(m->file.message, sizeof m->file.message, "out of memory");
  free(once);
  return all;
}

bool layer_load(model *m, layer *l) {
  for (int p = PART_Q; p <= PART_V; p++) {
    l->data[p] = load(m, l, (layer_part)p);
    if (l->data[p] == NULL) return false;
    l->dtype[p] = l->scale[p] != NULL || m->copies > 1 ? ST_F32 : l->part[p]->dtype;
  }
  return true;
}

void layer_unload(layer *l) {
  for (int p = PART_Q; p <= PART_V; p++) {
    free(l->data[p]);
    l->data[p] = NULL;
  }
}

const char *layer_note(const model *m, const layer *l) { return word(m, l->number, "note"); }

static size_t rows_of(const layer *l, layer_part part) { return part == PART_Q ? l->rows - l->first : l->rows; }

ref_rows layer_head(const layer *l, layer_part part, size_t head) {
  const st_tensor *t = l->part[part];
  if (part != PART_Q) head /= l->heads_q / l->heads_kv;
  ref_rows r = {l->data[part], l->dtype[part], rows_of(l, part), (size_t)t->shape[2]};
  r.data = (const unsigned char *)r.data + head * r.rows * r.cols * st_dtype_size(r.dtype);
  return r;
}

ice_tensor layer_tensor(const layer *l, layer_part part) {
  const st_tensor *t = l->part[part];
  st_dtype dtype = l->dtype[part];
  ice_tensor x;
  memset(&x, 0, sizeof x); /* strides 0: packed */
  x.data = l->data[part];
  x.dtype = dtype == ST_F32 ? ICE_F32 : dtype == ST_F16 ? ICE_F16 : ICE_BF16;
  x.row_stride = (size_t)t->shape[2] * st_dtype_size(dtype);
  x.head_stride = rows_of(l, part) * x.row_stride;
  return x;
}
