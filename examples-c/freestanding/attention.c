/* Attention on a microcontroller: one exact call, then a session in static memory, exact and accelerated, against softmax
 * written down. No heap, no libc. HAS_ACCELERATED and HAS_HALF say what the library was built with. */
#include "checks.h"

enum { HEADS_Q = 2, HEADS_KV = 1, DIM = 16, TOKENS = 1500, ROWS = 4 };

STATIC_MEMORY(session_memory, 640 * 1024);
STATIC_MEMORY(work_memory, 192 * 1024);
static float k[TOKENS * DIM], v[TOKENS * DIM], q[HEADS_Q * ROWS * DIM];
static float out[HEADS_Q * ROWS * DIM], expected[HEADS_Q * ROWS * DIM];

/* e^x for x <= 0: halve the argument until the series is short, square back. */
static double exponential(double x) {
  double y = x / 1024, sum = 1 + y * (1 + y / 2 * (1 + y / 3 * (1 + y / 4)));
  if (x < -60) return 0;
  for (int i = 0; i < 10; i++) sum *= sum;
  return sum;
}

static void softmax_attention(void) {
  static double logit[TOKENS];
  for (int h = 0; h < HEADS_Q * ROWS; h++) {
    const int visible = TOKENS - ROWS + h % ROWS + 1;
    double best = -1e300, sum = 0, mix[DIM] = {0};
    for (int j = 0; j < visible; j++) {
      double s = 0;
      for (int i = 0; i < DIM; i++) s += (double)q[h * DIM + i] * (double)k[j * DIM + i];
      logit[j] = s / 4; /* 1/sqrt(16) */
      if (logit[j] > best) best = logit[j];
    }
    for (int j = 0; j < visible; j++) {
      const double w = exponential(logit[j] - best);
      sum += w;
      for (int i = 0; i < DIM; i++) mix[i] += w * (double)v[j * DIM + i];
    }
    for (int i = 0; i < DIM; i++) expected[h * DIM + i] = (float)(mix[i] / sum);
  }
}

/* Square of the relative error of all rows. */
static float error_squared(void) {
  float off = 0, size = 0;
  for (int i = 0; i < HEADS_Q * ROWS * DIM; i++) {
    const float d = out[i] - expected[i];
    off += d * d;
    size += expected[i] * expected[i];
  }
  return off / size;
}

static ice_tensor tensor(const float *data) {
  const ice_tensor t = {data, ICE_F32, 0, 0, 0};
  return t;
}

static int one_call(void) {
  ice_attention_desc d;
  ice_error e;
  size_t bytes, align;
  ice_error_init(&e);
  ice_attention_desc_init(&d);
  d.heads_q = HEADS_Q;
  d.heads_kv = HEADS_KV;
  d.dim_k = DIM;
  d.rows_q = ROWS;
  d.rows_kv = TOKENS;
  d.q = tensor(q);
  d.k = tensor(k);
  d.v = tensor(v);
  d.out.data = out;
  d.mask.kind = ICE_MASK_CAUSAL;
  d.mask.q_pos0 = TOKENS - ROWS;
  d.options.mode = ICE_MODE_EXACT;
  if (ice_attention_required(&d, &bytes, &align, &e)) return failed("work size", e.message);
  report("exact call: work ", bytes, " bytes\n");
  if (bytes > sizeof work_memory) return failed("work", "larger than the array");
  if (ice_attention(&d, work_memory, bytes, NULL, &e)) return failed("attention", e.message);
  return error_squared() < 1e-10f ? 0 : failed("exact call", "differs from softmax");
}

/* Prompt in one piece, the last tokens one by one, rows attended together after each: the first time all keys, to see what cells err by. */
static int decode(ice_mode mode, float tolerance, float limit) {
  ice_session_options o;
  ice_session *s = NULL;
  ice_error e;
  ice_attention_stats stats;
  size_t bytes, align;
  ice_error_init(&e);
  ice_session_options_init(&o);
  o.heads_q = HEADS_Q;
  o.heads_kv = HEADS_KV;
  o.dim_k = DIM;
  o.capacity = TOKENS;
#ifdef HAS_HALF
  o.kv_dtype = ICE_F16;
#endif
  o.attention.mode = mode;
  o.attention.tolerance = tolerance;
  const ice_status sized = ice_session_required(&o, &bytes, &align, &e);
#ifndef HAS_ACCELERATED
  /* What a build leaves out is refused, and says so. */
  if (mode == ICE_MODE_ACCELERATED) return sized == ICE_ERR_UNSUPPORTED ? 0 : failed("accelerated", "is not in this build");
#endif
  if (sized) return failed("session size", e.message);
  report("session: ", bytes, " bytes");
  if (bytes > sizeof session_memory) return failed("session", "larger than the array");
  if (ice_session_new_in(session_memory, bytes, &o, &s, &e)) return failed("session", e.message);
  if (ice_session_work_required(s, ROWS, 1, &bytes, &align)) return failed("work size", "unknown");
  report(", work ", bytes, " bytes");
  if (bytes > sizeof work_memory) return failed("work", "larger than the array");
  const ice_tensor rows = tensor(q);
  ice_tensor_mut to = {out, ICE_F32, 0, 0, 0};
  for (size_t at = 0, n = TOKENS - 3; at < TOKENS; at += n, n = 1) {
    const ice_tensor new_k = tensor(k + at * DIM), new_v = tensor(v + at * DIM);
    if (ice_session_append(s, &new_k, &new_v, n, 0, 1, &e)) return failed("append", e.message);
    if (ice_session_commit(s)) return failed("commit", "refused");
    ice_attention_stats_init(&stats);
    if (ice_session_attend(s, &rows, ROWS, NULL, &to, NULL, work_memory, bytes, 0, 1, &stats, &e)) {
      return failed("attend", e.message);
    }
  }
  report(", scored ", (uint32_t)(100 * stats.pairs / stats.pairs_dense), " % of the pairs\n");
  if (tolerance > 0.01f && stats.pairs >= stats.pairs_dense) return failed("accelerated", "nothing was estimated");
  ice_session_free(s);
  return error_squared() < limit * limit ? 0 : failed("session", "differs from softmax");
}

int start(void) {
  static float centres[32 * DIM];
  random_fill(centres, 32 * DIM, 1);
  random_fill(k, TOKENS * DIM, 2);
  random_fill(v, TOKENS * DIM, 3);
  random_fill(q, HEADS_Q * ROWS * DIM, 4);
  /* Keys gather around centres, as those of models do, and values go with them. */
  for (int j = 0; j < TOKENS; j++) {
    const float *c = centres + ((uint32_t)j * 2654435761u >> 27) * DIM;
    for (int i = 0; i < DIM; i++) {
      k[j * DIM + i] = 2 * c[i] + 0.1f * k[j * DIM + i];
      v[j * DIM + i] = c[(i + 5) % DIM] + 0.1f * v[j * DIM + i];
    }
  }
  softmax_attention();
  if (one_call()) return 1;
  /* Storing in 16 bits costs up to 5e-4; the tolerance is an aim, not a bound. */
  if (decode(ICE_MODE_EXACT, 0, 1e-3f) || decode(ICE_MODE_ACCELERATED, 1e-12f, 1e-3f)) return 1;
  if (decode(ICE_MODE_ACCELERATED, 0.05f, 0.3f)) return 1;
  report("stack ", stack_used(), " bytes\nattention: ok\n");
  return 0;
}
