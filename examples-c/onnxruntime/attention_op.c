/* iceformer.Attention: inputs, outputs and attributes of Attention in ONNX opset 23, and the attributes `tolerance` and
 * `mode`. */
#include "attend.h"
#include "heads.h"
#include "op.h"
#include <stdlib.h>

enum { Q, K, V, MASK, PAST_KEY, PAST_VALUE };
enum { Y, PRESENT_KEY, PRESENT_VALUE, QK };

typedef struct kernel {
  settings settings;
  int64_t q_heads, kv_heads;
  bool causal;
} kernel;

static void *create(const OrtApi *api, const OrtKernelInfo *info, problem *p) {
  kernel *k = calloc(1, sizeof *k);
  if (!k) {
    fail(p, ORT_CODE_RUNTIME_EXCEPTION, "no memory");
    return NULL;
  }
  k->q_heads = attribute_int(api, info, "q_num_heads", 0);
  k->kv_heads = attribute_int(api, info, "kv_num_heads", 0);
  k->causal = attribute_int(api, info, "is_causal", 0) != 0;
  float scale = attribute_float(api, info, "scale", 1);
  int64_t precision = attribute_int(api, info, "softmax_precision", 0);
  bool ok = read_settings(api, info, &k->settings, p);
  if (k->q_heads < 0 || k->kv_heads < 0)
    ok = fail(p, ORT_CODE_INVALID_ARGUMENT, "q_num_heads and kv_num_heads: %lld and %lld; negative",
              (long long)k->q_heads, (long long)k->kv_heads);
  if (!(scale > 0)) ok = fail(p, ORT_CODE_INVALID_ARGUMENT, "scale: %g is not above 0", (double)scale);
  if (precision == 11)
    ok = fail(p, ORT_CODE_NOT_IMPLEMENTED, "softmax_precision: 11 (double); softmax is computed in 32 bits");
  if (node_has_output(api, info, QK))
    ok = fail(p, ORT_CODE_NOT_IMPLEMENTED,
              "qk_matmul_output: scores of all pairs are never held in memory; leave this output out");
  if (node_has_input(api, info, PAST_KEY) != node_has_input(api, info, PAST_VALUE))
    ok = fail(p, ORT_CODE_INVALID_ARGUMENT, "past_key and past_value: only one of them is there");
  if (ok) return k;
  free(k);
  return NULL;
}

/* Checks that shapes fit together; `past` is read too. */
static bool check(const heads *q, const heads *k, const heads *v, const heads *past_k, const heads *past_v, problem *p) {
  if (q->batch != k->batch || k->batch != v->batch || k->heads != v->heads || k->rows != v->rows)
    return fail(p, ORT_CODE_INVALID_ARGUMENT,
                "Q, K, V: batches %zu, %zu, %zu; KV heads %zu, %zu; rows of K and V %zu, %zu do not fit", q->batch,
                k->batch, v->batch, k->heads, v->heads, k->rows, v->rows);
  if (q->dim != k->dim)
    return fail(p, ORT_CODE_INVALID_ARGUMENT, "K: heads of %zu elements, those of Q have %zu", k->dim, q->dim);
  if (k->heads == 0 ? q->heads != 0 : q->heads % k->heads != 0)
    return fail(p, ORT_CODE_INVALID_ARGUMENT, "K: %zu heads, no divisor of the %zu of Q", k->heads, q->heads);
  if (past_k->batch != k->batch || past_k->heads != k->heads || past_k->dim != k->dim || past_v->batch != v->batch ||
      past_v->heads != v->heads || past_v->dim != v->dim || past_k->rows != past_v->rows)
    return fail(p, ORT_CODE_INVALID_ARGUMENT, "past_key, past_value: shapes do not fit K and V or each other");
  return true;
}

static bool read_past(const tensor *t, const char *name, const heads *added, heads *out, problem *p) {
  *out = *added;
  out->rows = 0;
  out->t.data = NULL;
  if (!t->present) return true;
  if (t->rank != 4)
    return fail(p, ORT_CODE_INVALID_ARGUMENT, "%s: shape %s; [batch, heads, rows, elements] is known", name,
                describe(t).text);
  return view_heads(t, name, 0, "", out, p);
}

static void compute(const OrtApi *api, const void *state, int type, OrtKernelContext *context, problem *p) {
  const kernel *op = state;
  static const char *const names[] = {"Q", "K", "V", "attn_mask", "past_key", "past_value"};
  tensor in[6];
  for (size_t i = 0; i < 6; i++)
    if (!read_input(api, context, i, names[i], &in[i], p)) return;
  heads q, k, v, past_k, past_v;
  if (!view_heads(&in[Q], names[Q], op->q_heads, "q_num_heads", &q, p) ||
      !view_heads(&in[K], names[K], op->kv_heads, "kv_num_heads", &k, p) ||
      !view_heads(&in[V], names[V], op->kv_heads, "kv_num_heads", &v, p) ||
      !read_past(&in[PAST_KEY], names[PAST_KEY], &k, &past_k, p) ||
      !read_past(&in[PAST_VALUE], names[PAST_VALUE], &v, &past_v, p) || !check(&q, &k, &v, &past_k, &past_v, p))
    return;
  size_t past = past_k.rows, total = past + k.rows;
  attention a = {.batch = q.batch, .heads_q = q.heads, .heads_kv = k.heads, .dim_k = q.dim, .dim_v = v.dim,
                 .rows = q.rows, .q = q.t, .causal = op->causal, .settings = op->settings};
  if (!view_mask(&in[MASK], q.batch, q.heads, q.rows, total, &a.mask, p)) return;

  void *y, *present[2], *spare = NULL;
  int64_t y4[4] = {(int64_t)q.batch, (int64_t)q.heads, (int64_t)q.rows, (int64_t)v.dim};
  int64_t y3[3] = {(int64_t)q.batch, (int64_t)q.rows, (int64_t)(q.heads * v.dim)};
  bool flat = in[Q].rank == 3;
  if (!make_output(api, context, Y, flat ? y3 : y4, flat ? 3 : 4, &y, p)) return;
  heads out = packed_heads(y, type, q.batch, q.heads, q.rows, v.dim);
  if (flat) {
    out.t.head_stride = out.t.row_stride;
    out.t.row_stride *= q.heads;
  }
  a.out = (ice_tensor_mut){y, out.t.dtype, out.t.row_stride, out.t.head_stride, out.t.batch_stride};

  const heads *added[2] = {&k, &v}, *before[2] = {&past_k, &past_v};
  joined parts[2];
  size_t count = 0, bytes[2];
  for (size_t i = 0; i < 2; i++) {
    int64_t dims[4] = {(int64_t)k.batch, (int64_t)k.heads, (int64_t)total, (int64_t)added[i]->dim};
    if (!make_output(api, context, PRESENT_KEY + i, dims, 4, &present[i], p)) return;
    bytes[i] = k.batch * k.heads * total * added[i]->dim * element_size(type);
  }
  /* Keys and values of two places are attended in one: an output, or memory of this call where nobody asks for it. */
  size_t missing = (past && !present[0] ? bytes[0] : 0) + (past && !present[1] ? bytes[1] : 0);
  if (missing && !(spare = malloc(missing))) {
    fail(p, ORT_CODE_RUNTIME_EXCEPTION, "no memory to join past and present, %zu bytes", missing);
    return;
  }
  char *next = spare;
  for (size_t i = 0; i < 2; i++) {
    if (past && !present[i] && next) {
      present[i] = next;
      next += bytes[i];
    }
    heads all = present[i] ? packed_heads(present[i], type, k.batch, k.heads, total, added[i]->dim) : *added[i];
    if (present[i]) parts[count++] = (joined){*before[i], *added[i], all, false};
    *(i ? &a.v : &a.k) = all.t;
  }
  size_t *numbers = malloc(2 * (q.batch + 1) * sizeof *numbers);
  if (!numbers) fail(p, ORT_CODE_RUNTIME_EXCEPTION, "no memory");
  for (size_t b = 0; numbers && b < q.batch; b++) {
    numbers[b] = past;
    numbers[q.batch + b] = total;
  }
  a.positions = numbers;
  a.lengths = numbers + q.batch;
  if (numbers && (!count || join(api, context, parts, count, numbers, p))) attend(api, context, &a, p);
  free(numbers);
  free(spare);
}

const operator_form attention_operator = {"Attention", "TTTutt", "Tttt", create, compute};
