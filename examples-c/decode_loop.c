/* How a language model uses a session: the prompt in one piece, then token by token. Keys and values lie as models keep
 * them, [token, head, dim], which strides describe without a copy.
 *
 * decode_loop accelerated [TOLERANCE] estimates what matters little instead of scoring every key. */
#include "common/aligned.h"
#include "common/random.h"

#include <iceformer.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS_Q = 4, HEADS_KV = 2, DIM = 64, PROMPT = 1000, TOKENS = 32, ALL = PROMPT + TOKENS };
enum { ROW_Q = HEADS_Q * DIM, ROW_KV = HEADS_KV * DIM }; /* elements per token */

static float q[ALL * ROW_Q], k[ALL * ROW_KV], v[ALL * ROW_KV];
static float out[ALL * ROW_Q], expected[ALL * ROW_Q];

static ice_mode mode = ICE_MODE_EXACT;
static uint64_t pairs, pairs_dense; /* query-key pairs scored, and those there are */

/* Work memory that only ever grows, so that the loop stops allocating. */
static void *work;
static size_t work_bytes;

static int failed(const char *what, const char *why) {
  fprintf(stderr, "decode_loop: %s: %s\n", what, why);
  return EXIT_FAILURE;
}

/* Tokens from `token` on, seen as [head, token, dim]. */
static ice_tensor view(const float *data, size_t token, size_t row) {
  ice_tensor t;
  memset(&t, 0, sizeof t);
  t.data = data + token * row;
  t.dtype = ICE_F32;
  t.row_stride = row * sizeof(float);
  t.head_stride = DIM * sizeof(float);
  return t;
}

static ice_tensor_mut view_mut(float *data, size_t token, size_t row) {
  ice_tensor_mut t;
  memset(&t, 0, sizeof t);
  t.data = data + token * row;
  t.dtype = ICE_F32;
  t.row_stride = row * sizeof(float);
  t.head_stride = DIM * sizeof(float);
  return t;
}

/* Appends n tokens, then attends for them. With several threads each calls append and attend with its own `ith`. */
static int step(ice_session *s, size_t token, size_t n) {
  ice_error e;
  ice_tensor new_k = view(k, token, ROW_KV), new_v = view(v, token, ROW_KV), new_q = view(q, token, ROW_Q);
  ice_tensor_mut new_out = view_mut(out, token, ROW_Q);
  size_t bytes = 0, align = 0;
  ice_error_init(&e);
  if (ice_session_append(s, &new_k, &new_v, n, 0, 1, &e)) return failed("append", e.message);
  ice_status status = ice_session_commit(s);
  if (status != ICE_OK) return failed("commit", ice_status_message(status));
  if (ice_session_work_required(s, n, 1, &bytes, &align)) return failed("work memory", "size unknown");
  if (bytes > work_bytes) {
    aligned_delete(work);
    work_bytes = bytes;
    work = aligned_new(work_bytes, align);
    if (work == NULL) return failed("work memory", "none left");
  }
  /* No mask: each row sees everything up to itself. */
  ice_attention_stats stats;
  ice_attention_stats_init(&stats);
  if (ice_session_attend(s, &new_q, n, NULL, &new_out, NULL, work, work_bytes, 0, 1, &stats, &e)) {
    return failed("attend", e.message);
  }
  pairs += stats.pairs;
  pairs_dense += stats.pairs_dense;
  return EXIT_SUCCESS;
}

static int decode(ice_session *s) {
  int result = step(s, 0, PROMPT);
  for (size_t t = PROMPT; result == EXIT_SUCCESS && t < ALL; t++) result = step(s, t, 1);
  return result;
}

/* The same rows by one exact call over all tokens. */
static int attend_at_once(void) {
  ice_attention_desc d;
  ice_error e;
  ice_error_init(&e);
  ice_attention_desc_init(&d);
  d.batch = 1;
  d.heads_q = HEADS_Q;
  d.heads_kv = HEADS_KV;
  d.dim_k = d.dim_v = DIM;
  d.rows_q = d.rows_kv = ALL;
  d.q = view(q, 0, ROW_Q);
  d.k = view(k, 0, ROW_KV);
  d.v = view(v, 0, ROW_KV);
  d.out = view_mut(expected, 0, ROW_Q);
  d.mask.kind = ICE_MASK_CAUSAL;
  d.options.mode = ICE_MODE_EXACT;
  if (ice_attention(&d, NULL, 0, NULL, &e)) return failed("exact attention", e.message);
  return EXIT_SUCCESS;
}

/* Relative L2 difference of the rows of tokens first..ALL. */
static double difference(const float *a, const float *b, size_t first) {
  double sum = 0, norm = 0;
  for (size_t i = first * ROW_Q; i < (size_t)ALL * ROW_Q; i++) {
    double x = (double)a[i], y = (double)b[i];
    sum += (x - y) * (x - y);
    norm += y * y;
  }
  return sqrt(sum / norm);
}

static int run(ice_session *s) {
  if (decode(s) || attend_at_once()) return EXIT_FAILURE;
  double all = difference(out, expected, 0), last = difference(out, expected, ALL - 1);
  printf("prompt of %d tokens, then %d one by one: differs from one exact call by %.1e (last row %.1e)\n", PROMPT,
         TOKENS, all, last);
  printf("scored %.1f %% of the query-key pairs\n", 100.0 * (double)pairs / (double)pairs_dense);
  double limit = mode == ICE_MODE_EXACT ? 1e-5 : 0.3;
  if (!(all < limit && last < limit)) return failed("check", "session and single call disagree");

  /* Throw the generated tokens away and generate them again, as a sampler does when it backtracks. */
  if (mode == ICE_MODE_EXACT) memcpy(expected, out, sizeof out);
  ice_status status = ice_session_truncate(s, PROMPT);
  if (status != ICE_OK) return failed("truncate", ice_status_message(status));
  for (size_t t = PROMPT; t < ALL; t++) {
    if (step(s, t, 1)) return EXIT_FAILURE;
  }
  if (mode == ICE_MODE_EXACT) {
    if (memcmp(out, expected, sizeof out) != 0) return failed("check", "the second pass differs from the first");
    printf("truncated to the prompt and decoded again: same bits; %zu tokens in the session\n", ice_session_len(s));
  } else {
    /* An accelerated session keeps what it has found about the prompt's keys: bits may differ, errors stay small. */
    all = difference(out, expected, 0);
    if (!(all < limit)) return failed("check", "the second pass and the single call disagree");
    printf("truncated to the prompt and decoded again: differs by %.1e; %zu tokens in the session\n", all,
           ice_session_len(s));
  }
  return EXIT_SUCCESS;
}

/* Keys and values of neighbouring tokens resemble each other, as those of models do. */
static void drift(float *x) {
  for (size_t i = ROW_KV; i < (size_t)ALL * ROW_KV; i++) x[i] = 0.95f * x[i - ROW_KV] + 0.3f * x[i];
}

int main(int argc, char **argv) {
  ice_error e;
  ice_session_options o;
  ice_session *s = NULL;
  random_fill(q, sizeof q / sizeof *q, 1);
  random_fill(k, sizeof k / sizeof *k, 2);
  random_fill(v, sizeof v / sizeof *v, 3);
  drift(k);
  drift(v);
  for (size_t i = 0; i < sizeof q / sizeof *q; i++) q[i] *= 4; /* some keys matter more than others */
  ice_error_init(&e);
  ice_session_options_init(&o);
  o.heads_q = HEADS_Q;
  o.heads_kv = HEADS_KV;
  o.dim_k = o.dim_v = DIM;
  o.capacity = ALL;
  o.kv_dtype = ICE_F32;
  if (argc > 1) {
    if (argc > 3 || strcmp(argv[1], "accelerated") != 0) return failed("usage", "decode_loop [accelerated [TOLERANCE]]");
    mode = ICE_MODE_ACCELERATED;
    if (argc > 2) o.attention.tolerance = strtof(argv[2], NULL);
  }
  o.attention.mode = mode;
  if (ice_session_new(&o, &s, &e)) return failed("new", e.message);
  int result = run(s);
  ice_session_free(s);
  aligned_delete(work);
  if (result == EXIT_SUCCESS) puts("decode_loop: ok");
  return result;
}
