#include "measure.h"

#include "../common/clock.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE 256
#define ROUNDS 3
/* A mode that has run this long on a layer is not repeated further. */
#define ENOUGH_SECONDS 6.0

static const char *const name[RUN_MODES] = {"exact", "accelerated", "top-k"};
/* ICE_MODE_AUTO is what a call gets that asks for nothing: accelerated where that pays. */
static const ice_mode mode_value[RUN_MODES] = {ICE_MODE_EXACT, ICE_MODE_AUTO, ICE_MODE_TOP_K};

typedef struct work {
  void *block, *at; /* as allocated; aligned */
  size_t bytes;
} work;

static int modes(const measure *m) { return m->top_k ? RUN_MODES : RUN_TOP_K; }

size_t measure_steps(const measure *m, const layer *l) { return ROUNDS * (size_t)modes(m) + l->heads_q; }

/* The same rows every time, without a pattern that a library could have, too. */
static size_t anywhere(size_t i, size_t n) {
  uint64_t x = (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
  x ^= x >> 31;
  x *= UINT64_C(0xBF58476D1CE4E5B9);
  x ^= x >> 29;
  return (size_t)(x % n);
}

bool measure_start(measure *m, const layer *l, size_t rows) {
  m->rows = rows;
  m->queries = rows - l->first;
  m->n_sample = m->queries < SAMPLE ? m->queries : SAMPLE;
  m->sample = malloc(m->n_sample * sizeof *m->sample);
  m->reference = malloc(m->n_sample * l->dim_v * sizeof *m->reference);
  m->scratch = malloc(m->n_sample * sizeof *m->scratch);
  bool ok = m->sample != NULL && m->reference != NULL && m->scratch != NULL;
  for (int i = 0; i < modes(m); i++) {
    m->out[i] = malloc(l->heads_q * m->queries * l->dim_v * sizeof(float));
    m->lse[i] = malloc(l->heads_q * m->queries * sizeof(float));
    m->errors[i] = calloc(m->n_sample, sizeof(row_error));
    ok = ok && m->out[i] != NULL && m->lse[i] != NULL && m->errors[i] != NULL;
  }
  for (size_t i = 0; ok && i < m->n_sample; i++) {
    size_t begin = i * m->queries / m->n_sample, end = (i + 1) * m->queries / m->n_sample;
    m->sample[i] = i + 1 == m->n_sample ? end - 1 : begin + anywhere(i, end - begin);
  }
  return ok;
}

void measure_finish(measure *m) {
  free(m->sample);
  free(m->reference);
  free(m->scratch);
  m->sample = NULL;
  m->reference = m->scratch = NULL;
  for (int i = 0; i < RUN_MODES; i++) {
    free(m->out[i]);
    free(m->lse[i]);
    free(m->errors[i]);
    m->out[i] = m->lse[i] = NULL;
    m->errors[i] = NULL;
  }
}

static void describe(const measure *m, const layer *l, run_mode mode, ice_attention_desc *d) {
  ice_attention_desc_init(d);
  d->batch = 1;
  d->heads_q = (uint32_t)l->heads_q;
  d->heads_kv = (uint32_t)l->heads_kv;
  d->dim_k = (uint32_t)l->dim_k;
  d->dim_v = (uint32_t)l->dim_v;
  d->rows_q = m->queries;
  d->rows_kv = m->rows;
  d->q = layer_tensor(l, PART_Q);
  d->k = layer_tensor(l, PART_K);
  d->v = layer_tensor(l, PART_V);
  d->out.data = m->out[mode];
  d->out.dtype = ICE_F32;
  /* Only where the share of the mass is computed from it: timed calls do what users' calls do. */
  d->lse = m->top_k ? m->lse[mode] : NULL;
  d->mask.kind = l->causal ? ICE_MASK_CAUSAL : ICE_MASK_NONE;
  d->mask.q_pos0 = l->first;
  d->options.mode = mode_value[mode];
  d->options.top_k = m->keys;
  d->options.tolerance = m->tolerance;
  d->options.num_threads = m->threads;
}

static bool fail(measure *m, const layer *l, run_mode mode, const char *what) {
  snprintf(m->message, sizeof m->message, "layer %" PRIu64 ", %s: %s", l->number, name[mode], what);
  return false;
}

/* Asks for the work memory. */
static ice_status prepare(const measure *m, const layer *l, run_mode mode, work *w, ice_error *error) {
  ice_attention_desc d;
  size_t align = 1;
  describe(m, l, mode, &d);
  ice_status status = ice_attention_required(&d, &w->bytes, &align, error);
  if (status != ICE_OK) return status;
  w->block = malloc(w->bytes + align);
  if (w->block == NULL) {
    snprintf(error->message, sizeof error->message, "out of memory (%zu bytes)", w->bytes);
    return ICE_ERR_NO_MEMORY;
  }
  w->at = (unsigned char *)w->block + (align - (uintptr_t)w->block % align) % align;
  return ICE_OK;
}

static void step(measure *m, const layer *l, const char *what) {
  m->progress(m, l->number, what);
  m->steps_done++;
}

/* Modes take turns and the fastest call counts, so that a slow spell of the machine says little about any of them. */
static bool run_rounds(measure *m, const layer *l, const work *works, layer_result *result) {
  double seconds[RUN_MODES][ROUNDS], spent[RUN_MODES] = {0};
  size_t runs[RUN_MODES] = {0};
  for (int round = 0; round < ROUNDS; round++) {
    for (int mode = 0; mode < modes(m); mode++) {
      step(m, l, name[mode]);
      if (spent[mode] > ENOUGH_SECONDS) continue;
      ice_attention_desc d;
      ice_attention_stats stats;
      ice_error error;
      describe(m, l, (run_mode)mode, &d);
      ice_attention_stats_init(&stats);
      ice_error_init(&error);
      double start = clock_seconds();
      ice_status status = ice_attention(&d, works[mode].at, works[mode].bytes, &stats, &error);
      double took = clock_seconds() - start;
      if (status != ICE_OK) return fail(m, l, (run_mode)mode, error.message);
      if (mode == RUN_FAST) result->stats = stats;
      seconds[mode][runs[mode]++] = took;
      spent[mode] += took;
    }
  }
  for (int mode = 0; mode < modes(m); mode++) {
    result->seconds[mode] = metrics_least(seconds[mode], runs[mode]);
    result->work[mode] = works[mode].bytes;
  }
  return true;
}

static bool compare(measure *m, const layer *l, layer_result *result) {
  for (size_t head = 0; head < l->heads_q; head++) {
    ref_rows q = layer_head(l, PART_Q, head), k = layer_head(l, PART_K, head), v = layer_head(l, PART_V, head);
    q.rows = m->queries;
    k.rows = v.rows = m->rows;
    step(m, l, "the same in f64");
    if (!ref_attention(q, k, v, l->causal, l->first, m->sample, m->n_sample, m->reference)) {
      return fail(m, l, RUN_EXACT, "out of memory for the f64 reference");
    }
    for (int mode = 0; mode < modes(m); mode++) {
      const float *out = m->out[mode] + head * m->queries * l->dim_v;
      for (size_t i = 0; i < m->n_sample; i++) {
        metrics_add(&m->errors[mode][i], out + m->sample[i] * l->dim_v, m->reference + i * l->dim_v, l->dim_v);
      }
    }
  }
  for (int mode = 0; mode < modes(m); mode++) {
    result->error[mode] = metrics_spread(m->errors[mode], m->n_sample, m->scratch);
  }
  if (m->top_k) result->mass = metrics_mass(m->lse[RUN_TOP_K], m->lse[RUN_EXACT], l->heads_q * m->queries);
  return true;
}

bool measure_layer(measure *m, const layer *l, layer_result *result) {
  work works[RUN_MODES] = {{NULL, NULL, 0}};
  bool ok = true;
  memset(result, 0, sizeof *result);
  for (int mode = 0; ok && mode < modes(m); mode++) {
    ice_error error;
    ice_error_init(&error);
    ice_status status = prepare(m, l, (run_mode)mode, &works[mode], &error);
    if (status != ICE_OK) ok = fail(m, l, (run_mode)mode, error.message);
  }
  ok = ok && run_rounds(m, l, works, result) && compare(m, l, result);
  for (int mode = 0; mode < RUN_MODES; mode++) free(works[mode].block);
  return ok;
}
