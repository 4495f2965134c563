#include "attend.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
  ROWS = 192,      /* exact attention reuses keys and values for so many rows */
  TASKS = 32,      /* as many as keep the threads of a large machine busy */
  SHORT = 2048,    /* below so many keys the automatic mode is exact */
  FEW = 512,       /* below so many rows of a KV head cells, built for this call, cost more than they save */
  BIAS = 1 << 22   /* numbers of a bias made at a time */
};

bool read_settings(const OrtApi *api, const OrtKernelInfo *info, settings *out, problem *p) {
  static const char *const names[] = {"auto", "exact", "accelerated"};
  static const ice_mode modes[] = {ICE_MODE_AUTO, ICE_MODE_EXACT, ICE_MODE_ACCELERATED};
  char name[32] = "";
  size_t mode = 0;
  if (attribute_string(api, info, "mode", name, sizeof name)) {
    while (mode < 3 && strcmp(name, names[mode])) mode++;
    if (mode == 3)
      return fail(p, ORT_CODE_INVALID_ARGUMENT, "mode: \"%s\"; \"auto\", \"exact\" and \"accelerated\" are known", name);
  } else {
    int64_t number = attribute_int(api, info, "mode", 0);
    if (number < 0 || number > 2)
      return fail(p, ORT_CODE_INVALID_ARGUMENT, "mode: %lld; 0 (auto), 1 (exact) and 2 (accelerated) are known",
                  (long long)number);
    mode = (size_t)number;
  }
  *out = (settings){modes[mode], attribute_float(api, info, "tolerance", 0), attribute_float(api, info, "scale", 0),
                    attribute_float(api, info, "softcap", 0), 0};
  if (!(out->tolerance >= 0 && out->tolerance <= 1))
    return fail(p, ORT_CODE_INVALID_ARGUMENT, "tolerance: %g is not between 0 and 1", (double)out->tolerance);
  if (!(out->softcap >= 0 && out->softcap < 1e30f))
    return fail(p, ORT_CODE_INVALID_ARGUMENT, "softcap: %g is not a number from 0 on", (double)out->softcap);
  if (!(out->scale > -1e30f && out->scale < 1e30f))
    return fail(p, ORT_CODE_INVALID_ARGUMENT, "scale: %g is not finite", (double)out->scale);
  return true;
}

/* What all tasks share. */
typedef struct work {
  const attention *a;
  plane *planes; /* [mask batches, mask heads] */
  uint64_t *ends;
  uint8_t *keys;
  size_t most_keys, chunks, chunk_rows;
  atomic_flag failed;
  problem *p; /* written by whoever sets `failed` */
} work;

static void refuse(work *w, ice_status status, const char *message) {
  if (atomic_flag_test_and_set(&w->failed)) return;
  bool theirs = status == ICE_ERR_ARGUMENT || status == ICE_ERR_SHAPE || status == ICE_ERR_NOT_FINITE;
  int code = theirs ? ORT_CODE_INVALID_ARGUMENT
             : status == ICE_ERR_UNSUPPORTED ? ORT_CODE_NOT_IMPLEMENTED
                                             : ORT_CODE_RUNTIME_EXCEPTION;
  fail(w->p, code, "%s (%s)", message, ice_status_name(status));
}

static mask_shape shape_of(const attention *a, size_t batch) {
  return (mask_shape){a->rows, a->lengths[batch], a->positions[batch], a->causal};
}

/* Whether a batch is certainly attended exactly, so that its rows can be divided. */
static bool is_exact(const attention *a, size_t batch) {
  bool few = a->rows * (a->heads_q / a->heads_kv) < FEW;
  bool small = a->settings.mode == ICE_MODE_AUTO && a->lengths[batch] < SHORT;
  return a->settings.mode == ICE_MODE_EXACT || few || small;
}

static void look_at_plane(void *user, size_t i) {
  work *w = user;
  const mask_view *m = &w->a->mask;
  size_t batch = i / m->heads, head = i % m->heads;
  mask_shape shape = shape_of(w->a, batch);
  plane *s = w->planes + i;
  *s = classify(m, batch, head, &shape, w->ends + i * w->a->rows, w->keys ? w->keys + i * w->most_keys : NULL);
  key_range seen;
  if (s->kind == PLANE_BIAS && is_even(m, batch, head, &shape, &seen))
    *s = (plane){.kind = PLANE_EVEN, .begin = seen.begin, .end = seen.end};
}

/* Query heads head .. head + heads of one KV head, rows row .. row + n, keys key .. key + keys. */
typedef struct part {
  size_t batch, kv, head, heads, row, n, key, keys;
} part;

static void call(work *w, const part *at, const ice_mask *mask, bool exact) {
  const attention *a = w->a;
  ice_attention_desc d;
  ice_attention_desc_init(&d);
  d.heads_q = (uint32_t)at->heads;
  d.heads_kv = 1;
  d.dim_k = (uint32_t)a->dim_k;
  d.dim_v = (uint32_t)a->dim_v;
  d.rows_q = at->n;
  d.rows_kv = at->keys;
  d.q = a->q;
  d.k = a->k;
  d.v = a->v;
  d.out = a->out;
  d.q.data = (const char *)a->q.data + at->batch * a->q.batch_stride + at->head * a->q.head_stride +
             at->row * a->q.row_stride;
  d.k.data = (const char *)a->k.data + at->batch * a->k.batch_stride + at->kv * a->k.head_stride +
             at->key * a->k.row_stride;
  d.v.data = (const char *)a->v.data + at->batch * a->v.batch_stride + at->kv * a->v.head_stride +
             at->key * a->v.row_stride;
  d.out.data = (char *)a->out.data + at->batch * a->out.batch_stride + at->head * a->out.head_stride +
               at->row * a->out.row_stride;
  /* One batch, one KV head: what separates several of them does not matter and may look too small. */
  d.q.batch_stride = d.k.batch_stride = d.v.batch_stride = d.out.batch_stride = 0;
  d.k.head_stride = d.v.head_stride = 0;
  d.mask = *mask;
  d.options.mode = exact ? ICE_MODE_EXACT : a->settings.mode;
  d.options.tolerance = a->settings.tolerance;
  d.options.scale = a->settings.scale;
  d.options.softcap = a->settings.softcap;
  d.options.window = a->settings.window;
  ice_error e;
  ice_error_init(&e);
  ice_status status = ice_attention(&d, NULL, 0, NULL, &e);
  if (status != ICE_OK) refuse(w, status, e.message);
}

/* Rows that see one range of keys each. */
static void call_range(work *w, part at, const plane *s, size_t position, bool exact) {
  const attention *a = w->a;
  ice_mask mask;
  ice_mask_init(&mask);
  size_t last = at.row + at.n, length = a->lengths[at.batch];
  at.key = s->begin;
  at.keys = length - s->begin;
  if (!s->everything && s->diagonal && position + at.row >= s->begin) {
    mask.kind = ICE_MASK_CAUSAL;
    mask.q_pos0 = position + at.row - s->begin;
    if (position + last < length) at.keys = position + last - s->begin;
  } else if (!s->everything) {
    mask.kind = ICE_MASK_PREFIX;
    mask.prefix = s->ends + at.row;
    mask.prefix_len = at.n;
  }
  call(w, &at, &mask, exact);
}

static void call_keys(work *w, part at, const plane *s, bool exact) {
  ice_mask mask;
  ice_mask_init(&mask);
  mask.kind = ICE_MASK_KEYS;
  mask.keys = s->keys;
  mask.keys_len = at.keys = w->a->lengths[at.batch];
  call(w, &at, &mask, exact);
}

/* Rows under a bias, made for as many of them as fit into a few MiB; only keys that one of them sees are read. */
static void call_bias(work *w, part at) {
  const attention *a = w->a;
  const mask_view *m = &a->mask;
  mask_shape shape = shape_of(a, at.batch);
  size_t mask_head = m->heads > 1 ? at.head : 0;
  ice_mask mask;
  ice_mask_init(&mask);
  mask.kind = ICE_MASK_ADDITIVE;
  mask.bias.row_stride = shape.keys * sizeof(float);
  size_t most = BIAS / shape.keys, end = at.row + at.n;
  most = most < 1 ? 1 : most > ROWS ? ROWS : most;
  if (most > at.n) most = at.n;
  float *bias = malloc(most * shape.keys * sizeof *bias);
  if (!bias) {
    refuse(w, ICE_ERR_NO_MEMORY, "attn_mask: no memory to expand it");
    return;
  }
  for (; at.row < end; at.row += at.n) {
    at.n = end - at.row < most ? end - at.row : most;
    key_range seen = expand(m, at.batch, mask_head, &shape, at.row, at.n, bias);
    at.key = seen.begin;
    at.keys = seen.end - seen.begin;
    mask.bias.data = bias + seen.begin;
    call(w, &at, &mask, true);
  }
  free(bias);
}

/* Rows under a bias that is read where it lies. */
static void call_even(work *w, part at, const plane *s, bool exact) {
  const mask_view *m = &w->a->mask;
  ice_mask mask;
  ice_mask_init(&mask);
  mask.kind = ICE_MASK_ADDITIVE;
  mask.bias.data = m->data + at.batch * m->batch_stride + at.head * m->head_stride + at.row * m->row_stride +
                   s->begin * m->key_stride;
  mask.bias.dtype = m->type == ORT_FLOAT ? ICE_F32 : ICE_F16;
  mask.bias.row_stride = m->row_stride;
  at.key = s->begin;
  at.keys = s->end - s->begin;
  call(w, &at, &mask, exact);
}

/* Without a mask tensor. */
static void call_plain(work *w, part at, size_t position, bool exact) {
  const attention *a = w->a;
  ice_mask mask;
  ice_mask_init(&mask);
  size_t end = position + at.row + at.n, length = a->lengths[at.batch];
  at.keys = length;
  if (a->causal) {
    mask.kind = ICE_MASK_CAUSAL;
    mask.q_pos0 = position + at.row;
    if (end < length) at.keys = end;
  }
  call(w, &at, &mask, exact);
}

/* Rows of the query heads of one (batch, KV head). Cells are built call by call: what is not exact is one call. */
static void attend_part(void *user, size_t i) {
  work *w = user;
  const attention *a = w->a;
  /* The last rows of a causal problem take longest: they come first. */
  size_t chunk = w->chunks - 1 - i % w->chunks, group = i / w->chunks, per_kv = a->heads_q / a->heads_kv;
  part whole = {.batch = group / a->heads_kv, .kv = group % a->heads_kv, .heads = per_kv};
  whole.head = whole.kv * per_kv;
  size_t position = a->positions[whole.batch];
  const mask_view *m = &a->mask;
  /* A mask of its own for every query head: one call each. */
  size_t step = m->data && m->heads > 1 ? 1 : per_kv;
  for (size_t h = 0; h < per_kv; h += step) {
    part at = whole;
    at.head += h;
    at.heads = step;
    const plane *s =
        m->data ? w->planes + (m->batches > 1 ? at.batch : 0) * m->heads + (m->heads > 1 ? at.head : 0) : NULL;
    bool exact = is_exact(a, at.batch) || (s && s->kind == PLANE_BIAS);
    if (!exact && chunk != 0) continue;
    at.row = exact ? chunk * w->chunk_rows : 0;
    at.n = exact ? w->chunk_rows : a->rows;
    if (at.row >= a->rows) continue;
    if (at.n > a->rows - at.row) at.n = a->rows - at.row;
    if (!s) call_plain(w, at, position, exact);
    else if (s->kind == PLANE_RANGE) call_range(w, at, s, position, exact);
    else if (s->kind == PLANE_KEYS) call_keys(w, at, s, exact);
    else if (s->kind == PLANE_EVEN) call_even(w, at, s, exact);
    else call_bias(w, at);
  }
}

bool attend(const OrtApi *api, const OrtKernelContext *context, const attention *a, problem *p) {
  size_t groups = a->batch * a->heads_kv;
  if (!groups || !a->rows || !a->dim_v) return true;
  work w = {.a = a, .failed = ATOMIC_FLAG_INIT, .p = p};
  for (size_t b = 0; b < a->batch; b++)
    if (a->lengths[b] > w.most_keys) w.most_keys = a->lengths[b];
  size_t blocks = (a->rows + ROWS - 1) / ROWS, wanted = (TASKS + groups - 1) / groups;
  w.chunks = wanted < blocks ? wanted : blocks;
  w.chunk_rows = (blocks + w.chunks - 1) / w.chunks * ROWS;
  w.chunks = (a->rows + w.chunk_rows - 1) / w.chunk_rows;
  void *memory = NULL;
  bool ok = true;
  if (a->mask.data) {
    size_t planes = a->mask.batches * a->mask.heads;
    size_t keys = a->mask.row_stride ? 0 : w.most_keys;
    memory = malloc(planes * (sizeof(plane) + a->rows * sizeof(uint64_t) + keys));
    if (!memory) return fail(p, ORT_CODE_RUNTIME_EXCEPTION, "attn_mask: no memory to look at it");
    w.planes = memory;
    w.ends = (uint64_t *)(void *)(w.planes + planes);
    w.keys = keys ? (uint8_t *)(w.ends + planes * a->rows) : NULL;
    ok = in_parallel(api, context, look_at_plane, planes, &w, p);
  }
  ok = ok && in_parallel(api, context, attend_part, groups * w.chunks, &w, p);
  free(memory);
  return ok && p->code == 0;
}
