/* An index in static memory on a microcontroller: insert, query, remove, against brute force. No heap, no libc. */
#include "checks.h"

enum { KEYS = 256, DIM = 16, K = 5, QUERIES = 8 };

STATIC_MEMORY(index_memory, 128 * 1024);
STATIC_MEMORY(scratch_memory, 96 * 1024);
static float keys[KEYS * DIM], queries[QUERIES * DIM];

static float dot(const float *a, const float *b) {
  float sum = 0;
  for (int i = 0; i < DIM; i++) sum += a[i] * b[i];
  return sum;
}

/* Whether `found` holds the K best of keys first..KEYS. */
static int right(const ice_neighbor *found, const float *query, uint32_t first) {
  for (int n = 0; n < K; n++) {
    const float score = dot(keys + found[n].id * DIM, query), off = score - found[n].score;
    uint32_t better = 0;
    if (found[n].id < first || off > 1e-4f || off < -1e-4f) return 0;
    for (uint32_t i = first; i < KEYS; i++) better += dot(keys + i * DIM, query) > score + 1e-5f;
    if (better > (uint32_t)n) return 0;
  }
  return 1;
}

static int use(ice_index *index) {
  static ice_neighbor found[QUERIES * K];
  ice_query_options o;
  ice_scratch *scratch = NULL;
  ice_error e;
  size_t bytes, align;
  uint64_t ids[KEYS / 2];
  ice_error_init(&e);
  if (ice_index_insert(index, keys, KEYS, NULL, &e)) return failed("insert", e.message);
  if (ice_index_insert(index, keys, 1, NULL, &e) != ICE_ERR_CAPACITY) return failed("insert", "one too many was taken");
  if (ice_scratch_required(index, &bytes, &align, &e)) return failed("scratch size", e.message);
  report("scratch ", bytes, " bytes\n");
  if (bytes > sizeof scratch_memory) return failed("scratch", "larger than the array");
  if (ice_scratch_new_in(scratch_memory, bytes, index, &scratch, &e)) return failed("scratch", e.message);
  ice_query_options_init(&o, K);
  o.visit_fraction = o.retrieve_fraction = 1;
  o.engine = ICE_ENGINE_CELLS;
#ifndef HAS_CELLS
  if (ice_index_query(index, scratch, queries, QUERIES, &o, found, NULL, &e) != ICE_ERR_UNSUPPORTED) {
    return failed("query", "cells are not in this build");
  }
#else
  if (ice_index_query(index, scratch, queries, QUERIES, &o, found, NULL, &e)) return failed("query", e.message);
#endif
  for (int engine = ICE_ENGINE_AUTO; engine <= ICE_ENGINE_SCAN; engine++) {
    o.engine = engine;
    if (ice_index_query(index, scratch, queries, QUERIES, &o, found, NULL, &e)) return failed("query", e.message);
    for (int q = 0; q < QUERIES; q++) {
      if (!right(found + q * K, queries + q * DIM, 0)) return failed("query", "differs from brute force");
    }
  }
  for (uint32_t i = 0; i < KEYS / 2; i++) ids[i] = i;
  if (ice_index_remove(index, ids, KEYS / 2, NULL)) return failed("remove", "refused");
  if (ice_index_query(index, scratch, queries, QUERIES, &o, found, NULL, &e)) return failed("query", e.message);
  for (int q = 0; q < QUERIES; q++) {
    if (!right(found + q * K, queries + q * DIM, KEYS / 2)) return failed("query after remove", "differs from brute force");
  }
  ice_scratch_free(scratch);
  return 0;
}

int start(void) {
  ice_index_options o;
  ice_index *index = NULL;
  ice_error e;
  size_t bytes, align;
  random_fill(keys, KEYS * DIM, 1);
  random_fill(queries, QUERIES * DIM, 2);
  ice_error_init(&e);
  ice_index_options_init(&o, DIM);
  o.capacity = KEYS;
  if (ice_index_required(&o, &bytes, &align, &e)) return failed("size", e.message);
  report("index of 256 keys of dimension 16: ", bytes, " bytes\n");
  if (bytes > sizeof index_memory) return failed("index", "larger than the array");
  if (ice_index_new_in(index_memory, bytes - 1, &o, &index, &e) == ICE_OK) return failed("index", "one byte less was enough");
  if (ice_index_new_in(index_memory, bytes, &o, &index, &e)) return failed("index", e.message);
  if (use(index)) return 1;
  ice_index_free(index);
  report("stack ", stack_used(), " bytes\nindex: ok\n");
  return 0;
}
