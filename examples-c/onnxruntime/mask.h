/* Attention masks as ONNX models give them: a tensor of bool or float, broadcast to [batch, heads, rows, keys]. Most of
 * them say something simple about every row ("the keys from here to there"), which attention can use; the others are
 * handed on as a bias, block of rows by block of rows. */
#ifndef ICE_ONNX_MASK_H
#define ICE_ONNX_MASK_H

#include "ort.h"

/* A mask tensor, broadcast: strides in bytes, 0 along a dimension that is shared. */
typedef struct mask_view {
  const char *data; /* NULL: no mask */
  int type;         /* ORT_BOOL, ORT_FLOAT or ORT_FLOAT16 */
  size_t batches, heads;
  size_t batch_stride, head_stride, row_stride, key_stride;
} mask_view;

/* Checks shape and type. `keys` is the last dimension it must broadcast to. */
bool view_mask(const tensor *t, size_t batch, size_t heads, size_t rows, size_t keys, mask_view *out, problem *p);

/* What the rows of one (batch, head) look at, `causal` included. */
typedef enum plane_kind {
  PLANE_RANGE, /* row i sees keys begin .. begin + ends[i] */
  PLANE_KEYS,  /* every row sees the keys whose byte is 1 */
  PLANE_EVEN,  /* every row sees keys begin .. end, each under a bias of its own: see is_even */
  PLANE_BIAS   /* anything else */
} plane_kind;

typedef struct plane {
  plane_kind kind;
  size_t begin;
  size_t end;         /* EVEN */
  bool everything;    /* RANGE: every row sees all from begin on */
  bool diagonal;      /* RANGE: row i sees all from begin up to its own position */
  const uint64_t *ends; /* RANGE: [rows] */
  const uint8_t *keys;  /* KEYS: [keys] */
} plane;

/* Rows of queries and keys of one (batch, head). Row i stands at position `position + i`. */
typedef struct mask_shape {
  size_t rows, keys, position;
  bool causal;
} mask_shape;

/* Looks at one plane. `ends` has room for `rows` numbers and `keys` for as many bytes as there are keys (nullable: no
 * KEYS answer). O(rows keys) bytes read at most, fewer for irregular masks. */
plane classify(const mask_view *m, size_t batch, size_t head, const mask_shape *shape, uint64_t *ends, uint8_t *keys);

/* Keys begin .. end. */
typedef struct key_range {
  size_t begin, end;
} key_range;

/* Whether all rows of a plane of floats see the same range of keys, under biases of their own that attention can read where
 * they lie: relative positions, as encoders have them. Only such biases go to cells. O(rows keys) entries read. */
bool is_even(const mask_view *m, size_t batch, size_t head, const mask_shape *shape, key_range *seen);

/* Writes rows row .. row + n of a plane as bias [n, keys]: 0 or the mask's own number, -inf where it hides, below the
 * diagonal too if causal. Returns the range of keys that any of the rows sees. */
key_range expand(const mask_view *m, size_t batch, size_t head, const mask_shape *shape, size_t row, size_t n,
                 float *bias);

#endif
