#include "heads.h"
#include <string.h>

size_t element_size(int type) { return type == ORT_FLOAT ? 4 : type == ORT_FLOAT16 ? 2 : 0; }

heads packed_heads(const void *data, int type, size_t batch, size_t count, size_t rows, size_t dim) {
  size_t row = dim * element_size(type);
  ice_tensor t = {data, type == ORT_FLOAT ? ICE_F32 : ICE_F16, row, rows * row, count * rows * row};
  return (heads){batch, count, rows, dim, t};
}

bool view_heads(const tensor *t, const char *name, int64_t count, const char *count_name, heads *out, problem *p) {
  if (!t->present) return fail(p, ORT_CODE_INVALID_ARGUMENT, "%s: is missing", name);
  size_t dims[4] = {0};
  for (size_t i = 0; i < t->rank && i < 4; i++) dims[i] = (size_t)t->dims[i];
  if (t->rank == 4) {
    if (count > 0 && dims[1] != (size_t)count)
      return fail(p, ORT_CODE_INVALID_ARGUMENT, "%s: %zu heads in shape %s, %s says %lld", name, dims[1],
                  describe(t).text, count_name, (long long)count);
    *out = packed_heads(t->data, t->type, dims[0], dims[1], dims[2], dims[3]);
  } else if (t->rank == 3) {
    if (count <= 0)
      return fail(p, ORT_CODE_INVALID_ARGUMENT, "%s: of shape %s needs the attribute %s", name, describe(t).text,
                  count_name);
    if (dims[2] % (size_t)count)
      return fail(p, ORT_CODE_INVALID_ARGUMENT, "%s: the last dimension of shape %s is no multiple of %s = %lld", name,
                  describe(t).text, count_name, (long long)count);
    size_t dim = dims[2] / (size_t)count;
    *out = packed_heads(t->data, t->type, dims[0], (size_t)count, dims[1], dim);
    out->t.head_stride = out->t.row_stride;
    out->t.row_stride *= (size_t)count;
  } else {
    return fail(p, ORT_CODE_INVALID_ARGUMENT, "%s: shape %s; 3 or 4 dimensions are known", name, describe(t).text);
  }
  if (!out->dim) return fail(p, ORT_CODE_INVALID_ARGUMENT, "%s: heads of no elements in shape %s", name, describe(t).text);
  return true;
}

typedef struct joining {
  const joined *parts;
  const size_t *kept;
} joining;

static void copy_rows(const heads *from, const heads *to, size_t batch, size_t head, size_t at, size_t rows) {
  if (!rows) return;
  size_t row = to->dim * (to->t.dtype == ICE_F32 ? 4 : 2);
  const char *source = (const char *)from->t.data + batch * from->t.batch_stride + head * from->t.head_stride;
  char *target = (char *)to->t.data + batch * to->t.batch_stride + head * to->t.head_stride + at * to->t.row_stride;
  if (from->t.row_stride == row && to->t.row_stride == row) {
    memcpy(target, source, rows * row);
    return;
  }
  for (size_t i = 0; i < rows; i++) memcpy(target + i * to->t.row_stride, source + i * from->t.row_stride, row);
}

static void join_head(void *user, size_t i) {
  const joining *j = user;
  size_t per = j->parts->all.batch * j->parts->all.heads;
  const joined *part = j->parts + i / per;
  size_t batch = i % per / part->all.heads, head = i % part->all.heads, kept = j->kept[batch];
  if (!part->in_place) copy_rows(&part->past, &part->all, batch, head, 0, kept);
  copy_rows(&part->added, &part->all, batch, head, kept, part->added.rows);
  size_t end = kept + part->added.rows, row = part->all.t.row_stride;
  if (part->in_place || end >= part->all.rows) return;
  char *rest = (char *)part->all.t.data + batch * part->all.t.batch_stride + head * part->all.t.head_stride + end * row;
  memset(rest, 0, (part->all.rows - end) * row);
}

bool join(const OrtApi *api, const OrtKernelContext *context, const joined *parts, size_t count, const size_t *kept,
          problem *p) {
  joining j = {parts, kept};
  return in_parallel(api, context, join_head, count * parts->all.batch * parts->all.heads, &j, p);
}
