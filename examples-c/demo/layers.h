/* The attention layers of a file: `layer{l}.q` [query heads, n, d], `layer{l}.k` and `.v` [KV heads, n, d]. Elements are
 * floats, or bytes that a factor of their row multiplies, which stands in `layer{l}.q.scale` [query heads, n]. With
 * metadata `layer{l}.first` only the rows from that position on have queries. */
#ifndef DEMO_LAYERS_H
#define DEMO_LAYERS_H

#include "reference.h"
#include "safetensors.h"

#include <iceformer.h>
#include <stdbool.h>

typedef enum layer_part { PART_Q, PART_K, PART_V } layer_part;

typedef struct layer {
  uint64_t number;
  const st_tensor *part[3], *scale[3]; /* by layer_part; scale is NULL where the elements are floats */
  void *data[3];                       /* NULL until loaded */
  st_dtype dtype[3];                   /* of the data: f32 where the file has bytes, or the text is repeated */
  size_t heads_q, heads_kv, dim_k, dim_v;
  size_t rows, first; /* tokens, all copies of them; position of the first query */
  bool causal;
} layer;

typedef struct model {
  st_file file;
  layer *layers; /* by number */
  size_t n_layers;
  size_t copies;    /* of the captured text, one after another */
  double rope_base; /* of the rotary embedding of queries and keys; used where there are several copies */
} model;

/* Opens the file and checks that its layers can be run. On failure `file.message` says why. */
bool model_open(model *m, const char *path);
void model_close(model *m);

/* Lets the captured text stand `copies` times, one after another; queries and keys of the later ones are rotated on to their
 * positions. `rope_base` 0: what the file's metadata say. False, and `file.message` says why, where that cannot be done. */
bool model_repeat(model *m, size_t copies, double rope_base);

/* A layer's tensors, in memory while it is worked on. */
bool layer_load(model *m, layer *l);
void layer_unload(layer *l);

/* A line about the layer from the file's metadata, or NULL. */
const char *layer_note(const model *m, const layer *l);

/* One head: of the queries, or of the keys or values that query head `head` uses. */
ref_rows layer_head(const layer *l, layer_part part, size_t head);
/* All heads. */
ice_tensor layer_tensor(const layer *l, layer_part part);

#endif
