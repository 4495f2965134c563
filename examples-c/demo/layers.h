/* The attention layers of a file: `layer{l}.q` [query heads, n, d], `layer{l}.k` and `.v` [KV heads, n, d]. */
#ifndef DEMO_LAYERS_H
#define DEMO_LAYERS_H

#include "reference.h"
#include "safetensors.h"

#include <iceformer.h>
#include <stdbool.h>

typedef struct layer {
  uint64_t number;
  const st_tensor *q, *k, *v;
  void *q_data, *k_data, *v_data; /* NULL until loaded */
  size_t heads_q, heads_kv, rows, dim_k, dim_v;
  bool causal;
} layer;

typedef struct model {
  st_file file;
  layer *layers; /* by number */
  size_t n_layers;
} model;

/* Opens the file and checks that its layers can be run. On failure `file.message` says why. */
bool model_open(model *m, const char *path);
void model_close(model *m);

/* A layer's tensors, in memory while it is worked on. */
bool layer_load(model *m, layer *l);
void layer_unload(layer *l);

/* A line about the layer from the file's metadata, or NULL. */
const char *layer_note(const model *m, const layer *l);

/* One head: of the queries, or of the keys or values that query head `head` uses. */
typedef enum layer_part { PART_Q, PART_K, PART_V } layer_part;
ref_rows layer_head(const layer *l, layer_part part, size_t head);
ice_tensor layer_tensor(const layer *l, layer_part part, size_t head);

#endif
