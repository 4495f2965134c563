#include "measure.h"

#include "../common/clock.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE 256
#define ROUNDS 5
/* A mode that has run this long on a head is not repeated further. */
#define ENOUGH_SECONDS 1.0

const char *const run_mode_name[RUN_MODES] = {"exact", "top-k", "accel"};
static const ice_mode mode_value[RUN_MODES] = {ICE_MODE_EXACT, ICE_MODE_TOP_K, ICE_MODE_ACCELERATED};

typedef struct work {
  void *block, *at; /* as allocated; aligned */
  size_t bytes;
} work;

bool measure_start(measure *m, const layer *l, size_t rows) {
  m->rows = rows;
  m->dim_v = l->dim_v;
  m->n_sample = rows < SAMPLE ? rows : SAMPLE;
  m->sample = malloc(m->n_sample * sizeof *m->sample);
  m->reference = malloc(m->n_sample * l->dim_v * sizeof *m->reference);
  m->head_errors = malloc(m->n_sample * sizeof *m->head_errors);
  m->scratch = malloc(m->n_sample * sizeof *m->scratch);
  bool ok = m->sample != NULL && m->reference != NULL && m->head_errors != NULL && m->scratch != NULL;
  for (int i = 0; i < RUN_MODES; i++) {
    m->out[i] = malloc(rows * l->dim_v * sizeof(float));
    m->lse[i] = malloc(rows * sizeof(float));
    m->layer_errors[i] = calloc(m->n_sample, sizeof(row_error));
    ok = ok && m->out[i] != NULL && m->lse[i] != NULL && m->layer_errors[i] != NULL;
  }
  /* The last row, which sees every key, is always among them. */
  for (size_t i = 0; ok && i < m->n_sample; i++) {
    m->sample[i] = (size_t)((double)(i + 1) * (double)rows / (double)m->n_sample) - 1;
  }
  return ok;
}

void measure_finish(measure *m) {
  free(m->sample);
  free(m->reference);
  free(m->head_errors);
  free(m->scratch);
  m->sample = NULL;
  m->reference = m->scratch = NULL;
  m->head_errors = NULL;
  for (int i = 0; i < RUN_MODES; i++) {
    free(m->out[i]);
    free(m->lse[i]);
    free(m->layer_errors[i]);
    m->out[i] = m->lse[i] = NULL;
    m->layer_errors[i] = NULL;
  }
}

/* One query head and its KV head as a problem of their own, so that each head has its own time. */
static void describe(const measure *m, const layer *l, size_t head, run_mode mode, ice_attention_desc *d) {
  ice_attention_desc_init(d);
  d->batch = d->heads_q = d->heads_kv = 1;
  d->dim_k = (uint32_t)l->dim_k;
  d->dim_v = (uint32_t)l->dim_v;
  d->rows_q = d->rows_kv = m->rows;
  d->q = layer_tensor(l, PART_Q, head);
  d->k = layer_tensor(l, PART_K, head);
  d->v = layer_tensor(l, PART_V, head);
  d->out.data = m->out[mode];
  d->out.dtype = ICE_F32;
  d->lse = m->lse[mode];
  d->mask.kind = l->causal ? ICE_MASK_CAUSAL : ICE_MASK_NONE;
  d->options.mode = mode_value[mode];
  d->options.top_k = m->top_k;
  d->options.tolerance = m->tolerance;
  d->options.num_threads = m->threads;
}

static bool fail(measure *m, const layer *l, size_t head, run_mode mode, const char *what) {
  snprintf(m->message, sizeof m->message, "layer %" PRIu64 " head %zu, %s: %s", l->number, head, run_mode_name[mode],
           what);
  return false;
}

/* Asks for the work memory. */
static ice_status prepare(const measure *m, const layer *l, size_t head, run_mode mode, work *w, ice_error *error) {
  ice_attention_desc d;
  size_t align = 1;
  describe(m, l, head, mode, &d);
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

/* Modes take turns, so that a slow spell of the machine does not fall on one of them alone. */
static bool run_rounds(measure *m, const layer *l, size_t head, const work *works, head_result *result) {
  double seconds[RUN_MODES][ROUNDS], spent[RUN_MODES] = {0};
  size_t runs[RUN_MODES] = {0};
  for (int round = 0; round < ROUNDS; round++) {
    for (int mode = 0; mode < RUN_MODES; mode++) {
      if (spent[mode] > ENOUGH_SECONDS) continue;
      ice_attention_desc d;
      ice_attention_stats stats;
      ice_error error;
      describe(m, l, head, (run_mode)mode, &d);
      ice_attention_stats_init(&stats);
      ice_error_init(&error);
      m->progress(m, l->number, head, run_mode_name[mode]);
      double start = clock_seconds();
      ice_status status = ice_attention(&d, works[mode].at, works[mode].bytes, &stats, &error);
      double took = clock_seconds() - start;
      if (status != ICE_OK) return fail(m, l, head, (run_mode)mode, error.message);
      if (mode == RUN_ACCELERATED) result->measured = (double)stats.measured_error;
      seconds[mode][runs[mode]++] = took;
      spent[mode] += took;
    }
  }
  for (int mode = 0; mode < RUN_MODES; mode++) {
    result->seconds[mode] = metrics_median(seconds[mode], runs[mode]);
    result->work[mode] = works[mode].bytes;
  }
  return true;
}

static bool compare(measure *m, const layer *l, size_t head, head_result *result) {
  ref_rows q = layer_head(l, PART_Q, head), k = layer_head(l, PART_K, head), v = layer_head(l, PART_V, head);
  q.rows = k.rows = v.rows = m->rows;
  m->progress(m, l->number, head, "f64 reference");
  if (!ref_attention(q, k, v, l->causal, m->sample, m->n_sample, m->reference)) {
    return fail(m, l, head, RUN_EXACT, "out of memory for the f64 reference");
  }
  for (int mode = 0; mode < RUN_MODES; mode++) {
    memset(m->head_errors, 0, m->n_sample * sizeof *m->head_errors);
    for (size_t i = 0; i < m->n_sample; i++) {
      const float *row = m->out[mode] + m->sample[i] * m->dim_v;
      metrics_add(&m->head_errors[i], row, m->reference + i * m->dim_v, m->dim_v);
      m->layer_errors[mode][i].difference += m->head_errors[i].difference;
      m->layer_errors[mode][i].norm += m->head_errors[i].norm;
    }
    result->error[mode] = metrics_spread(m->head_errors, m->n_sample, m->scratch);
  }
  result->mass = metrics_mass(m->lse[RUN_TOP_K], m->lse[RUN_EXACT], m->rows);
  return true;
}

bool measure_head(measure *m, const layer *l, size_t head, head_result *result) {
  work works[RUN_MODES] = {{NULL, NULL, 0}};
  bool ok = true;
  memset(result, 0, sizeof *result);
  for (int mode = 0; ok && mode < RUN_MODES; mode++) {
    ice_error error;
    ice_error_init(&error);
    ice_status status = prepare(m, l, head, (run_mode)mode, &works[mode], &error);
    if (status != ICE_OK) ok = fail(m, l, head, (run_mode)mode, error.message);
  }
  ok = ok && run_rounds(m, l, head, works, result) && compare(m, l, head, result);
  for (int mode = 0; mode < RUN_MODES; mode++) free(works[mode].block);
  m->heads_done++;
  return ok;
}
