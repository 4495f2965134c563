/* An index that lives in a static array, and one whose memory comes from the program's own allocator. */
#include "common/aligned.h"
#include "common/random.h"

#include <iceformer.h>
#include <stdio.h>
#include <stdlib.h>

enum { KEYS = 256, DIM = 16, K = 4 };

static float keys[(KEYS + 1) * DIM];

static int failed(const char *what, const char *why) {
  fprintf(stderr, "custom_memory: %s: %s\n", what, why);
  return EXIT_FAILURE;
}

/* ---- A static array: no heap. ---- */

static _Alignas(64) unsigned char index_memory[256 * 1024], scratch_memory[128 * 1024];

static int use_region(ice_index *index) {
  ice_error e;
  ice_scratch *scratch = NULL;
  ice_query_options qo;
  ice_neighbor found[K], exact[K];
  size_t bytes = 0, align = 0;
  ice_error_init(&e);
  if (ice_index_insert(index, keys, KEYS, NULL, &e)) return failed("insert", e.message);
  /* The region was sized for KEYS keys; one more must be refused, and change nothing. */
  if (ice_index_insert(index, keys + KEYS * DIM, 1, NULL, &e) != ICE_ERR_CAPACITY) {
    return failed("check", "a key beyond the capacity was not refused");
  }
  printf("key %d refused: %s\n", KEYS, e.message);

  /* With a scratch of its own, a query does not allocate either. */
  if (ice_scratch_required(index, &bytes, &align, &e)) return failed("scratch size", e.message);
  if (bytes > sizeof scratch_memory) return failed("scratch size", "larger than the array");
  if (ice_scratch_new_in(scratch_memory, bytes, index, &scratch, &e)) return failed("scratch", e.message);
  printf("scratch: %zu bytes\n", bytes);
  ice_query_options_init(&qo, K);
  qo.visit_fraction = qo.retrieve_fraction = 1;
  ice_status status = ice_index_query(index, scratch, keys, 1, &qo, found, NULL, &e);
  if (status == ICE_OK) status = ice_index_query_exact(index, scratch, keys, 1, &qo, exact, NULL, &e);
  ice_scratch_free(scratch);
  if (status != ICE_OK) return failed("query", e.message);
  for (int i = 0; i < K; i++) {
    if (found[i].id != exact[i].id) return failed("check", "query and brute force differ");
  }
  return EXIT_SUCCESS;
}

static int in_static_array(void) {
  ice_error e;
  ice_index_options o;
  ice_index *index = NULL;
  size_t bytes = 0, align = 0;
  ice_error_init(&e);
  ice_index_options_init(&o, DIM);
  o.capacity = KEYS;
  if (ice_index_required(&o, &bytes, &align, &e)) return failed("size", e.message);
  printf("index of %d keys of dimension %d: %zu bytes, aligned to %zu\n", (int)KEYS, (int)DIM, bytes, align);
  if (bytes > sizeof index_memory || align > 64) return failed("size", "larger than the array");
  /* Exactly the required bytes are enough; one less is not. */
  if (ice_index_new_in(index_memory, bytes - 1, &o, &index, &e) == ICE_OK) {
    return failed("check", "one byte less than required was accepted");
  }
  if (ice_index_new_in(index_memory, bytes, &o, &index, &e)) return failed("new_in", e.message);
  int result = use_region(index);
  ice_index_free(index); /* the array stays ours */
  return result;
}

/* ---- The program's own allocator. ---- */

typedef struct counter {
  size_t blocks, bytes, peak, calls, limit; /* bytes; limit: refuse beyond */
} counter;

static void *counted_alloc(void *user, size_t size, size_t align) {
  counter *c = user;
  if (c->bytes + size > c->limit) return NULL;
  void *p = aligned_new(size, align);
  if (p == NULL) return NULL;
  c->blocks++;
  c->calls++;
  c->bytes += size;
  if (c->bytes > c->peak) c->peak = c->bytes;
  return p;
}

static void counted_free(void *user, void *ptr, size_t size, size_t align) {
  counter *c = user;
  (void)align;
  c->blocks--;
  c->bytes -= size;
  aligned_delete(ptr);
}

/* Returns the status of the first call that fails. */
static ice_status fill(const ice_index_options *o, ice_error *e) {
  ice_index *index = NULL;
  ice_status status = ice_index_new(o, &index, e);
  if (status == ICE_OK) status = ice_index_insert(index, keys, KEYS, NULL, e);
  ice_index_free(index);
  return status;
}

static int with_hooks(void) {
  ice_error e;
  ice_index_options o;
  counter c = {0, 0, 0, 0, (size_t)1 << 30};
  ice_allocator hooks = {sizeof hooks, &c, counted_alloc, counted_free};
  ice_error_init(&e);
  ice_index_options_init(&o, DIM);
  o.allocator = &hooks;
  if (fill(&o, &e)) return failed("index on hooks", e.message);
  printf("hooks: %zu allocations, %zu bytes at most, %zu blocks left\n", c.calls, c.peak, c.blocks);
  if (c.calls == 0) return failed("check", "the hooks were not used");
  if (c.blocks != 0 || c.bytes != 0) return failed("check", "memory was not given back");

  /* The allocator runs dry half-way: a status, and nothing leaks. */
  c.limit = c.peak / 2;
  ice_status status = fill(&o, &e);
  printf("hooks with half the memory: %s\n", e.message);
  if (status != ICE_ERR_NO_MEMORY) return failed("check", "a refused allocation gave another status");
  if (c.blocks != 0 || c.bytes != 0) return failed("check", "memory was not given back after a failure");
  return EXIT_SUCCESS;
}

int main(void) {
  random_fill(keys, sizeof keys / sizeof *keys, 1);
  if (in_static_array() || with_hooks()) return EXIT_FAILURE;
  puts("custom_memory: ok");
  return EXIT_SUCCESS;
}
