/* One head through every mode: times, errors, memory. */
#ifndef DEMO_MEASURE_H
#define DEMO_MEASURE_H

#include "layers.h"
#include "metrics.h"

typedef enum run_mode { RUN_EXACT, RUN_TOP_K, RUN_ACCELERATED, RUN_MODES } run_mode;

extern const char *const run_mode_name[RUN_MODES];

typedef struct measure measure;

struct measure {
  uint32_t top_k, threads;
  float tolerance;
  size_t rows, dim_v; /* of the layer at hand */
  size_t *sample;     /* rows compared with f64, evenly spread */
  size_t n_sample;
  double *reference;                                /* n_sample x dim_v */
  float *out[RUN_MODES], *lse[RUN_MODES];           /* rows x dim_v, rows */
  row_error *head_errors, *layer_errors[RUN_MODES]; /* n_sample */
  double *scratch;                                  /* n_sample */
  size_t heads_done, heads_all;
  void (*progress)(const measure *m, uint64_t number, size_t head, const char *what);
  char message[512]; /* why a call failed */
};

typedef struct head_result {
  double seconds[RUN_MODES]; /* median */
  spread error[RUN_MODES];
  double mass;     /* mean share of the softmax mass that top-k kept */
  double measured; /* error that accelerated attention measured; NaN: it measured nothing */
  size_t work[RUN_MODES]; /* bytes */
} head_result;

/* Buffers for a layer's first `rows` rows; `layer_errors` start at zero. False: out of memory. */
bool measure_start(measure *m, const layer *l, size_t rows);
void measure_finish(measure *m);

bool measure_head(measure *m, const layer *l, size_t head, head_result *result);

#endif
