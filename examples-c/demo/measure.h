/* One layer through every mode: times, errors, memory. */
#ifndef DEMO_MEASURE_H
#define DEMO_MEASURE_H

#include "layers.h"
#include "metrics.h"

typedef enum run_mode { RUN_EXACT, RUN_FAST, RUN_TOP_K, RUN_MODES } run_mode;

typedef struct measure measure;

struct measure {
  bool top_k; /* also by top-k */
  uint32_t keys, threads;
  float tolerance;
  size_t rows, queries; /* of the layer at hand: tokens, and those of them that have queries */
  size_t *sample;       /* queries compared with f64: one anywhere in each of as many stretches, and the last */
  size_t n_sample;
  double *reference;                  /* n_sample x dim_v */
  float *out[RUN_MODES];              /* heads_q x queries x dim_v */
  float *lse[RUN_MODES];              /* heads_q x queries */
  row_error *errors[RUN_MODES];       /* n_sample: the outputs of all heads side by side */
  double *scratch;                    /* n_sample */
  size_t steps_done, steps_all;       /* of the progress bar */
  void (*progress)(const measure *m, uint64_t number, const char *what);
  char message[512]; /* why a call failed */
};

typedef struct layer_result {
  double seconds[RUN_MODES]; /* of the fastest call */
  spread error[RUN_MODES];
  size_t work[RUN_MODES]; /* bytes */
  ice_attention_stats stats; /* of RUN_FAST */
  double mass;               /* mean share of the softmax mass that top-k kept */
} layer_result;

/* Calls of `measure_layer` at the progress bar, for one layer. */
size_t measure_steps(const measure *m, const layer *l);

/* Buffers for a layer's first `rows` tokens. False: out of memory. */
bool measure_start(measure *m, const layer *l, size_t rows);
void measure_finish(measure *m);

bool measure_layer(measure *m, const layer *l, layer_result *result);

#endif
