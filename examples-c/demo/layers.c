#include "layers.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool fail(model *m, uint64_t number, const char *what) {
  snprintf(m->file.message, sizeof m->file.message, "layer%" PRIu64 ": %s", number, what);
  return false;
}

static const st_tensor *part(const model *m, uint64_t number, char letter) {
  char name[40];
  snprintf(name, sizeof name, "layer%" PRIu64 ".%c", number, letter);
  return st_find(&m->file, name);
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
  char key[40];
  snprintf(key, sizeof key, "layer%" PRIu64 ".causal", number);
  const char *value = st_metadata(&m->file, key);
  if (value == NULL) value = st_metadata(&m->file, "causal");
  return value != NULL && (strcmp(value, "True") == 0 || strcmp(value, "true") == 0 || strcmp(value, "1") == 0);
}

static bool check_layer(model *m, layer *l) {
  const st_tensor *parts[3] = {l->q, l->k, l->v};
  if (l->k == NULL || l->v == NULL) return fail(m, l->number, "keys or values are missing");
  for (int i = 0; i < 3; i++) {
    const st_tensor *t = parts[i];
    if (t->dtype == ST_OTHER) return fail(m, l->number, "only F32, F16 and BF16 can be read");
    if (t->dims != 3) return fail(m, l->number, "tensors must be [heads, tokens, dim]");
    for (int j = 0; j < 3; j++) {
      if (t->shape[j] == 0) return fail(m, l->number, "a tensor is empty");
      if (t->shape[j] > UINT32_MAX) return fail(m, l->number, "a tensor is too large");
    }
  }
  if (l->k->shape[0] != l->v->shape[0] || l->q->shape[0] % l->k->shape[0] != 0) {
    return fail(m, l->number, "query heads must be a multiple of the KV heads");
  }
  if (l->q->shape[1] != l->k->shape[1] || l->q->shape[1] != l->v->shape[1]) {
    return fail(m, l->number, "queries, keys and values differ in length");
  }
  if (l->q->shape[2] != l->k->shape[2]) return fail(m, l->number, "queries and keys differ in dimension");
  l->heads_q = (size_t)l->q->shape[0];
  l->heads_kv = (size_t)l->k->shape[0];
  l->rows = (size_t)l->q->shape[1];
  l->dim_k = (size_t)l->q->shape[2];
  l->dim_v = (size_t)l->v->shape[2];
  l->causal = is_causal(m, l->number);
  return true;
}

static int by_number(const void *a, const void *b) {
  const layer *x = a, *y = b;
  return (x->number > y->number) - (x->number < y->number);
}

bool model_open(model *m, const char *path) {
  memset(m, 0, sizeof *m);
  if (!st_open(&m->file, path)) return false;
  m->layers = calloc(m->file.n_tensors + 1, sizeof *m->layers);
  bool ok = m->layers != NULL;
  if (!ok) snprintf(m->file.message, sizeof m->file.message, "out of memory");
  for (size_t i = 0; ok && i < m->file.n_tensors; i++) {
    uint64_t number;
    if (!layer_number(m->file.tensors[i].name, &number)) continue;
    layer *l = &m->layers[m->n_layers++];
    l->number = number;
    l->q = &m->file.tensors[i];
    l->k = part(m, number, 'k');
    l->v = part(m, number, 'v');
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

bool layer_load(model *m, layer *l) {
  l->q_data = st_read(&m->file, l->q);
  if (l->q_data != NULL) l->k_data = st_read(&m->file, l->k);
  if (l->k_data != NULL) l->v_data = st_read(&m->file, l->v);
  return l->v_data != NULL;
}

void layer_unload(layer *l) {
  free(l->q_data);
  free(l->k_data);
  free(l->v_data);
  l->q_data = l->k_data = l->v_data = NULL;
}

const char *layer_note(const model *m, const layer *l) {
  char key[40];
  snprintf(key, sizeof key, "layer%" PRIu64 ".note", l->number);
  return st_metadata(&m->file, key);
}

ref_rows layer_head(const layer *l, layer_part part, size_t head) {
  const st_tensor *t = part == PART_Q ? l->q : part == PART_K ? l->k : l->v;
  const void *data = part == PART_Q ? l->q_data : part == PART_K ? l->k_data : l->v_data;
  if (part != PART_Q) head /= l->heads_q / l->heads_kv;
  ref_rows r = {data, t->dtype, l->rows, (size_t)t->shape[2]};
  r.data = (const unsigned char *)data + head * (size_t)t->shape[1] * r.cols * st_dtype_size(t->dtype);
  return r;
}

ice_tensor layer_tensor(const layer *l, layer_part part, size_t head) {
  ref_rows r = layer_head(l, part, head);
  ice_tensor t;
  memset(&t, 0, sizeof t); /* strides 0: packed rows */
  t.data = r.data;
  t.dtype = r.dtype == ST_F32 ? ICE_F32 : r.dtype == ST_F16 ? ICE_F16 : ICE_BF16;
  return t;
}
