#include "mask.h"
#include <float.h>
#include <math.h>
#include <string.h>

/* From here down a bias hides its key: the weight is zero in 32 bits unless logits differ by tens of thousands. */
#define HIDES (-30000.0f)
#define HIDES_F16 0xf753u

/* The lowest finite number of a type stands for minus infinity, as exporters mean it and ONNX Runtime reads it. */
#define LOWEST (-FLT_MAX)
#define LOWEST_F16 0xfbffu
#define INFINITY_F16 0xfc00u

bool view_mask(const tensor *t, size_t batch, size_t heads, size_t rows, size_t keys, mask_view *out, problem *p) {
  memset(out, 0, sizeof *out);
  if (!t->present) return true;
  size_t size = t->type == ORT_BOOL ? 1 : t->type == ORT_FLOAT ? 4 : t->type == ORT_FLOAT16 ? 2 : 0;
  if (!size)
    return fail(p, ORT_CODE_INVALID_ARGUMENT, "attn_mask: element type %d; bool, float and float16 are known", t->type);
  const int64_t want[4] = {(int64_t)batch, (int64_t)heads, (int64_t)rows, (int64_t)keys};
  int64_t have[4] = {1, 1, 1, 1};
  bool fits = t->rank >= 1 && t->rank <= 4;
  for (size_t i = 0; fits && i < t->rank; i++) have[4 - t->rank + i] = t->dims[i];
  for (size_t i = 0; fits && i < 4; i++) fits = have[i] == want[i] || have[i] == 1;
  if (!fits)
    return fail(p, ORT_CODE_INVALID_ARGUMENT,
                "attn_mask: shape %s does not broadcast to [batch %zu, heads %zu, rows %zu, keys %zu]", describe(t).text,
                batch, heads, rows, keys);
  size_t stride = size;
  size_t strides[4];
  for (size_t i = 4; i-- > 0;) {
    strides[i] = have[i] == 1 && want[i] != 1 ? 0 : stride;
    stride *= (size_t)have[i];
  }
  out->data = t->data ? t->data : "";
  out->type = t->type;
  out->batches = (size_t)have[0];
  out->heads = (size_t)have[1];
  out->batch_stride = have[0] == 1 ? 0 : strides[0];
  out->head_stride = have[1] == 1 ? 0 : strides[1];
  out->row_stride = have[2] == 1 ? 0 : strides[2];
  out->key_stride = strides[3];
  return true;
}

static const char *row_of(const mask_view *m, size_t batch, size_t head, size_t row) {
  return m->data + batch * m->batch_stride + head * m->head_stride + row * m->row_stride;
}

/* What a single entry says. */
enum { HIDDEN = 1, NEUTRAL = 2, HARD = 4 };

static float f32_at(const char *at) {
  float v;
  memcpy(&v, at, sizeof v);
  return v;
}

static unsigned f16_at(const char *at) {
  uint16_t v;
  memcpy(&v, at, sizeof v);
  return v;
}

static unsigned entry(int type, const char *at) {
  if (type == ORT_BOOL) return *at ? NEUTRAL : HIDDEN | HARD;
  if (type == ORT_FLOAT) {
    float v = f32_at(at);
    return v == 0 ? NEUTRAL : v <= HIDES ? HIDDEN | (v <= LOWEST ? HARD : 0u) : 0;
  }
  unsigned bits = f16_at(at);
  if (!(bits & 0x7fffu)) return NEUTRAL;
  return bits >= HIDES_F16 && bits <= INFINITY_F16 ? HIDDEN | (bits >= LOWEST_F16 ? HARD : 0u) : 0;
}

/* First key of from .. to whose entry does not say `what`. Blocks are looked at without branches. */
static size_t run(const mask_view *m, const char *row, size_t from, size_t to, unsigned what) {
  enum { BLOCK = 64 };
  if (!m->key_stride) return entry(m->type, row) & what ? to : from;
  size_t size = m->key_stride, i = from;
  for (; i + BLOCK <= to; i += BLOCK) {
    const char *at = row + i * size;
    unsigned same = what;
    if (m->type == ORT_BOOL) {
      for (size_t j = 0; j < BLOCK; j++) same &= at[j] ? NEUTRAL : HIDDEN | HARD;
    } else {
      for (size_t j = 0; j < BLOCK; j++) same &= entry(m->type, at + j * size);
    }
    if (!same) break;
  }
  while (i < to && entry(m->type, row + i * size) & what) i++;
  return i;
}

/* Keys that row `row` may see by its position. */
static size_t limit(const mask_shape *s, size_t row) {
  size_t end = s->position + row + 1;
  return s->causal && end < s->keys ? end : s->keys;
}

/* Whether a row sees one range of keys below `end`, and everything in it alike. */
static bool one_range(const mask_view *m, const char *row, size_t end, size_t *first, size_t *last) {
  *first = run(m, row, 0, end, HIDDEN);
  *last = run(m, row, *first, end, NEUTRAL);
  if (*first == end) return run(m, row, 0, end, HARD) == end; /* hidden by finite numbers: softmax is over those */
  return *last > *first && run(m, row, *last, end, HIDDEN) == end;
}

static plane ranges(const mask_view *m, size_t batch, size_t head, const mask_shape *s, uint64_t *ends) {
  plane out = {.kind = PLANE_RANGE, .begin = SIZE_MAX, .everything = true, .diagonal = true, .ends = ends};
  size_t first = 0, last = s->keys;
  for (size_t i = 0; i < s->rows; i++) {
    size_t end = limit(s, i);
    if (m->data && m->row_stride) {
      if (!one_range(m, row_of(m, batch, head, i), end, &first, &last)) return (plane){.kind = PLANE_BIAS};
    } else if (m->data && i == 0 && !one_range(m, row_of(m, batch, head, 0), s->keys, &first, &last)) {
      return (plane){.kind = PLANE_BIAS};
    }
    size_t stop = last < end ? last : end;
    bool empty = first >= stop;
    if (!empty && out.begin == SIZE_MAX) out.begin = first;
    if (!empty && out.begin != first) return (plane){.kind = PLANE_BIAS};
    ends[i] = empty ? 0 : stop - first;
    out.everything = out.everything && !empty && stop == s->keys;
    out.diagonal = out.diagonal && !empty && stop == s->position + i + 1;
  }
  if (out.begin == SIZE_MAX) out.begin = 0;
  return out;
}

plane classify(const mask_view *m, size_t batch, size_t head, const mask_shape *s, uint64_t *ends, uint8_t *keys) {
  plane out = ranges(m, batch, head, s, ends);
  if (out.kind != PLANE_BIAS || s->causal || m->row_stride || !keys) return out;
  const char *row = row_of(m, batch, head, 0);
  bool any = false;
  for (size_t j = 0; j < s->keys; j++) {
    unsigned e = entry(m->type, row + j * m->key_stride);
    if (!(e & (HIDDEN | NEUTRAL))) return out;
    keys[j] = e == NEUTRAL;
    any = any || keys[j];
  }
  if (any) out = (plane){.kind = PLANE_KEYS, .keys = keys};
  return out;
}

/* Whether no entry from .. to of a row of floats hides its key. In blocks, without branches. */
static bool shows(const mask_view *m, const char *row, size_t from, size_t to) {
  enum { BLOCK = 64 };
  size_t i = from;
  unsigned hidden = 0;
  if (m->type == ORT_FLOAT) {
    for (; i + BLOCK <= to && !hidden; i += BLOCK)
      for (size_t j = 0; j < BLOCK; j++) hidden |= f32_at(row + (i + j) * sizeof(float)) <= HIDES;
  } else {
    for (; i + BLOCK <= to && !hidden; i += BLOCK)
      for (size_t j = 0; j < BLOCK; j++) hidden |= f16_at(row + (i + j) * sizeof(uint16_t)) - HIDES_F16 <= INFINITY_F16 - HIDES_F16;
  }
  for (; i < to; i++) hidden |= entry(m->type, row + i * m->key_stride) & HIDDEN;
  return !hidden;
}

bool is_even(const mask_view *m, size_t batch, size_t head, const mask_shape *s, key_range *seen) {
  size_t size = m->type == ORT_FLOAT ? sizeof(float) : sizeof(uint16_t);
  if (s->causal || m->type == ORT_BOOL || m->key_stride != size || m->row_stride < s->keys * size) return false;
  const char *first = row_of(m, batch, head, 0);
  seen->begin = run(m, first, 0, s->keys, HIDDEN);
  for (seen->end = s->keys; seen->end > seen->begin; seen->end--)
    if (!(entry(m->type, first + (seen->end - 1) * size) & HIDDEN)) break;
  if (seen->begin == seen->end) return false;
  for (size_t i = 0; i < s->rows; i++) {
    const char *row = row_of(m, batch, head, i);
    if (run(m, row, 0, seen->begin, HIDDEN) != seen->begin) return false;
    if (!shows(m, row, seen->begin, seen->end)) return false;
    if (run(m, row, seen->end, s->keys, HIDDEN) != s->keys) return false;
  }
  return true;
}

/* Shifts the fraction into place and lets a product put the exponent right, subnormal numbers included. */
static float f16_to_f32(unsigned bits) {
  uint32_t word = (uint32_t)(bits & 0x7fffu) << 13;
  float v;
  memcpy(&v, &word, sizeof v);
  v *= 0x1p112f;
  if ((bits & 0x7c00u) == 0x7c00u) v = bits & 0x3ffu ? NAN : INFINITY;
  return bits & 0x8000u ? -v : v;
}

key_range expand(const mask_view *m, size_t batch, size_t head, const mask_shape *s, size_t row, size_t n,
                 float *bias) {
  key_range seen = {s->keys, 0};
  for (size_t i = 0; i < n; i++, bias += s->keys) {
    const char *at = row_of(m, batch, head, row + i);
    size_t end = limit(s, row + i), step = m->key_stride, first = s->keys, last = 0;
    if (m->type == ORT_BOOL) {
      for (size_t j = 0; j < end; j++) bias[j] = at[j * step] ? 0 : -INFINITY;
    } else if (m->type == ORT_FLOAT) {
      for (size_t j = 0; j < end; j++) {
        float v = f32_at(at + j * step);
        bias[j] = v <= LOWEST ? -INFINITY : v;
      }
    } else {
      for (size_t j = 0; j < end; j++) {
        unsigned bits = f16_at(at + j * step);
        bias[j] = bits == LOWEST_F16 ? -INFINITY : f16_to_f32(bits);
      }
    }
    for (size_t j = end; j < s->keys; j++) bias[j] = -INFINITY;
    for (size_t j = 0; j < end && first == s->keys; j++)
      if (bias[j] != -INFINITY) first = j;
    for (size_t j = end; j > first && !last; j--)
      if (bias[j - 1] != -INFINITY) last = j;
    if (first < seen.begin) seen.begin = first;
    if (last > seen.end) seen.end = last;
  }
  if (seen.begin >= seen.end) seen.begin = seen.end = 0;
  return seen;
}
