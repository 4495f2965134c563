/* iceformer.GroupQueryAttention: inputs and outputs of com.microsoft.GroupQueryAttention, what exported language models
 * use. Rotation, packed queries and biases are not part of it: the rewriter puts nodes of ONNX Runtime before it, or
 * leaves the model's own operator in place. */
#include "attend.h"
#include "heads.h"
#include "op.h"
#include <stdlib.h>

enum { QUERY, KEY, VALUE, PAST_KEY, PAST_VALUE, SEQLENS, TOTAL, COS, SIN, POSITIONS, BIAS, SINK, INPUTS };

typedef struct kernel {
  settings settings;
  int64_t heads, kv_heads;
} kernel;

static void *create(const OrtApi *api, const OrtKernelInfo *info, problem *p) {
  static const struct { const char *name; size_t index; } others[] = {
      {"cos_cache", COS}, {"sin_cache", SIN}, {"position_ids", POSITIONS}, {"attention_bias", BIAS}, {"head_sink", SINK}};
  static const char *const flags[] = {"do_rotary", "smooth_softmax", "qk_output"};
  kernel *k = calloc(1, sizeof *k);
  if (!k) {
    fail(p, ORT_CODE_RUNTIME_EXCEPTION, "no memory");
    return NULL;
  }
  bool ok = read_settings(api, info, &k->settings, p);
  k->heads = attribute_int(api, info, "num_heads", 0);
  k->kv_heads = attribute_int(api, info, "kv_num_heads", 0);
  int64_t window = attribute_int(api, info, "local_window_size", -1);
  k->settings.window = window > 0 ? (uint64_t)window : 0;
  if (k->heads <= 0 || k->kv_heads <= 0 || k->heads % k->kv_heads)
    ok = fail(p, ORT_CODE_INVALID_ARGUMENT, "num_heads and kv_num_heads: %lld and %lld; no multiple", (long long)k->heads,
              (long long)k->kv_heads);
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
    if (attribute_int(api, info, flags[i], 0) > 0)
      ok = fail(p, ORT_CODE_NOT_IMPLEMENTED, "%s: is not available", flags[i]);
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (node_has_input(api, info, others[i].index))
      ok = fail(p, ORT_CODE_NOT_IMPLEMENTED, "%s: is not available", others[i].name);
  if (!node_has_input(api, info, KEY) || !node_has_input(api, info, VALUE))
    ok = fail(p, ORT_CODE_NOT_IMPLEMENTED, "key, value: queries, keys and values packed into one are not available");
  if (ok) return k;
  free(k);
  return NULL;
}

static bool one_number(const tensor *t, const char *name, size_t count, problem *p) {
  size_t have = 1;
  for (size_t i = 0; i < t->rank; i++) have *= (size_t)t->dims[i];
  if (t->present && t->type == ORT_INT32 && have == count) return true;
  return fail(p, ORT_CODE_INVALID_ARGUMENT, "%s: shape %s; %zu numbers of int32 are needed", name, describe(t).text, count);
}

/* Fills positions, lengths per batch from seqlens_k, as ONNX Runtime understands it: the index of a batch's last token.
 * In a prompt, rows of a batch that is shorter than the others are padded at the end. */
static bool places(const tensor *seqlens, size_t batch, size_t rows, size_t total, size_t past, size_t *positions,
                   size_t *lengths, problem *p) {
  const int32_t *last = seqlens->data;
  for (size_t b = 0; b < batch; b++) {
    if (last[b] < 0 || (size_t)last[b] >= total)
      return fail(p, ORT_CODE_INVALID_ARGUMENT, "seqlens_k[%zu]: %d with a total_sequence_length of %zu", b, (int)last[b],
                  total);
    size_t length = (size_t)last[b] + 1;
    bool prompt = rows == total;
    if (!prompt && length < rows)
      return fail(p, ORT_CODE_INVALID_ARGUMENT, "seqlens_k[%zu]: %d, less than the %zu rows that are new", b,
                  (int)last[b], rows);
    positions[b] = prompt ? 0 : length - rows;
    lengths[b] = length;
    if (positions[b] > past)
      return fail(p, ORT_CODE_INVALID_ARGUMENT, "past_key: %zu rows, seqlens_k[%zu] asks for %zu", past, b, positions[b]);
  }
  return true;
}

static void compute(const OrtApi *api, const void *state, int type, OrtKernelContext *context, problem *p) {
  const kernel *op = state;
  static const char *const names[] = {"query", "key", "value", "past_key", "past_value", "seqlens_k",
                                      "total_sequence_length"};
  tensor in[7];
  for (size_t i = 0; i < 7; i++)
    if (!read_input(api, context, i, names[i], &in[i], p)) return;
  heads q, added[2], past[2];
  if (!view_heads(&in[QUERY], names[QUERY], op->heads, "num_heads", &q, p) ||
      !view_heads(&in[KEY], names[KEY], op->kv_heads, "kv_num_heads", &added[0], p) ||
      !view_heads(&in[VALUE], names[VALUE], op->kv_heads, "kv_num_heads", &added[1], p) ||
      !one_number(&in[SEQLENS], names[SEQLENS], q.batch, p) || !one_number(&in[TOTAL], names[TOTAL], 1, p))
    return;
  for (size_t i = 0; i < 2; i++) {
    if (in[QUERY].rank != 3 || in[KEY + i].rank != 3 || added[i].batch != q.batch || added[i].rows != q.rows ||
        added[i].dim != q.dim) {
      fail(p, ORT_CODE_INVALID_ARGUMENT, "%s: shape %s does not fit query %s", names[KEY + i],
           describe(&in[KEY + i]).text, describe(&in[QUERY]).text);
      return;
    }
    past[i] = packed_heads(NULL, type, q.batch, added[i].heads, 0, q.dim);
    if (!in[PAST_KEY + i].present) continue;
    if (!view_heads(&in[PAST_KEY + i], names[PAST_KEY + i], op->kv_heads, "kv_num_heads", &past[i], p)) return;
    if (in[PAST_KEY + i].rank != 4 || past[i].batch != q.batch || past[i].dim != q.dim) {
      fail(p, ORT_CODE_INVALID_ARGUMENT, "%s: shape %s does not fit query %s", names[PAST_KEY + i],
           describe(&in[PAST_KEY + i]).text, describe(&in[QUERY]).text);
      return;
    }
  }
  int32_t said = *(const int32_t *)in[TOTAL].data;
  size_t total = said > 0 ? (size_t)said : 0, capacity = total > past[0].rows ? total : past[0].rows;
  if (past[0].rows != past[1].rows || total < q.rows) {
    fail(p, ORT_CODE_INVALID_ARGUMENT, "total_sequence_length: %d with %zu new rows, %zu past keys and %zu past values",
         (int)said, q.rows, past[0].rows, past[1].rows);
    return;
  }

  void *y, *present[2];
  int64_t dims[4] = {(int64_t)q.batch, (int64_t)q.rows, (int64_t)(q.heads * q.dim), 0};
  if (!make_output(api, context, 0, dims, 3, &y, p)) return;
  int64_t cache[4] = {(int64_t)q.batch, (int64_t)op->kv_heads, (int64_t)capacity, (int64_t)q.dim};
  size_t bytes = q.batch * (size_t)op->kv_heads * capacity * q.dim * element_size(type);
  size_t *numbers = malloc(2 * (q.batch + 1) * sizeof *numbers);
  void *spare[2] = {NULL, NULL};
  joined parts[2];
  bool ok = numbers != NULL || fail(p, ORT_CODE_RUNTIME_EXCEPTION, "no memory");
  for (size_t i = 0; i < 2 && ok; i++) {
    ok = make_output(api, context, 1 + i, cache, 4, &present[i], p);
    if (ok && !present[i] && bytes) {
      present[i] = spare[i] = malloc(bytes);
      ok = spare[i] || fail(p, ORT_CODE_RUNTIME_EXCEPTION, "no memory for present keys and values, %zu bytes", bytes);
    }
    heads all = packed_heads(present[i], type, q.batch, (size_t)op->kv_heads, capacity, q.dim);
    /* Bound to the same memory, the cache is extended in place. */
    parts[i] = (joined){past[i], added[i], all, present[i] && past[i].t.data == present[i]};
  }
  size_t *lengths = numbers + (numbers ? q.batch : 0);
  ok = ok && places(&in[SEQLENS], q.batch, q.rows, total, past[0].rows, numbers, lengths, p);
  if (ok && join(api, context, parts, 2, numbers, p)) {
    size_t row = q.heads * q.dim * element_size(type), head = q.dim * element_size(type);
    attention a = {.batch = q.batch, .heads_q = q.heads, .heads_kv = (size_t)op->kv_heads, .dim_k = q.dim,
                   .dim_v = q.dim, .rows = q.rows, .positions = numbers, .lengths = lengths, .q = q.t,
                   .k = parts[0].all.t, .v = parts[1].all.t, .causal = true, .settings = op->settings,
                   .out = {y, q.t.dtype, row, head, q.rows * row}};
    attend(api, context, &a, p);
  }
  free(numbers);
  free(spare[0]);
  free(spare[1]);
}

const operator_form gqa_operator = {"GroupQueryAttention", "TttttIIttuuu", "Ttt", create, compute};
