/* The index by itself: insert, query, compare with brute force, remove, save, load. */
#include "common/random.h"

#include <iceformer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 2000, DIM = 32, QUERIES = 50, K = 10 };

static float keys[KEYS * DIM], queries[QUERIES * DIM];
static ice_neighbor found[QUERIES * K], exact[QUERIES * K];

static int failed(const char *what, const ice_error *e) {
  fprintf(stderr, "index_only: %s: %s\n", what, e->message);
  return EXIT_FAILURE;
}

static int wrong(const char *what) {
  fprintf(stderr, "index_only: %s\n", what);
  return EXIT_FAILURE;
}

/* Share of the true neighbours that are among the found ones. */
static double recall(void) {
  int hits = 0;
  for (int q = 0; q < QUERIES; q++) {
    for (int i = 0; i < K; i++) {
      for (int j = 0; j < K; j++) hits += found[q * K + j].id == exact[q * K + i].id;
    }
  }
  return (double)hits / (QUERIES * K);
}

static int same_ids(void) {
  for (int i = 0; i < QUERIES * K; i++) {
    if (found[i].id != exact[i].id) return 0;
  }
  return 1;
}

static int run(ice_index *index) {
  ice_error e;
  ice_query_options few, all;
  ice_error_init(&e);
  if (ice_index_insert(index, keys, KEYS, NULL, &e)) return failed("insert", &e); /* ids 0, 1, 2, ... */
  ice_query_options_init(&all, K);
  if (ice_index_query_exact(index, NULL, queries, QUERIES, &all, exact, NULL, &e)) return failed("exact query", &e);

  /* A budget: a tenth of the points may be retrieved and scored. */
  ice_query_options_init(&few, K);
  few.retrieve_fraction = 0.1f;
  if (ice_index_query(index, NULL, queries, QUERIES, &few, found, NULL, &e)) return failed("query", &e);
  printf("%d keys, %d queries, k = %d: recall %.2f when a tenth of the points is retrieved\n", KEYS, QUERIES, K,
         recall());

  /* No budget: the brute-force answer, in the same order. */
  all.visit_fraction = 1;
  all.retrieve_fraction = 1;
  if (ice_index_query(index, NULL, queries, QUERIES, &all, found, NULL, &e)) return failed("query", &e);
  if (!same_ids()) return wrong("an unlimited query differs from brute force");

  /* Remove the best answer of the first query: the second moves up. */
  uint64_t best = exact[0].id, second = exact[1].id;
  size_t removed = 0;
  if (ice_index_remove(index, &best, 1, &removed) || removed != 1) return wrong("remove failed");
  if (ice_index_query(index, NULL, queries, QUERIES, &all, found, NULL, &e)) return failed("query", &e);
  if (found[0].id != second) return wrong("a removed key was found");
  printf("removed key %llu; %zu keys left\n", (unsigned long long)best, ice_index_len(index));
  return EXIT_SUCCESS;
}

/* Saved bytes hold everything: the loaded index answers like the one that was saved. */
static int save_and_load(const ice_index *index) {
  ice_error e;
  ice_query_options all;
  ice_index *copy = NULL;
  size_t needed = 0;
  ice_error_init(&e);
  ice_status status = ice_index_save(index, NULL, 0, &needed); /* asks for the size */
  if (status != ICE_OK && status != ICE_ERR_BUFFER) return wrong(ice_status_message(status));
  unsigned char *bytes = malloc(needed);
  if (bytes == NULL) return wrong("out of memory");
  int result = EXIT_SUCCESS;
  ice_query_options_init(&all, K);
  all.visit_fraction = 1;
  all.retrieve_fraction = 1;
  memcpy(exact, found, sizeof exact);
  if (ice_index_save(index, bytes, needed, &needed)) result = wrong("save failed");
  else if (ice_index_load(bytes, needed, NULL, &copy, &e)) result = failed("load", &e);
  else if (ice_index_query(copy, NULL, queries, QUERIES, &all, found, NULL, &e)) result = failed("query", &e);
  else if (!same_ids()) result = wrong("the loaded index answers differently");
  ice_index_free(copy);
  copy = NULL;
  if (result == EXIT_SUCCESS) {
    bytes[needed / 2] ^= 1;
    if (ice_index_load(bytes, needed, NULL, &copy, &e) == ICE_OK) result = wrong("damaged bytes were loaded");
    else printf("saved and loaded %zu bytes; one flipped bit is refused: %s\n", needed, e.message);
  }
  ice_index_free(copy);
  free(bytes);
  return result;
}

int main(void) {
  ice_error e;
  ice_index_options o;
  ice_index *index = NULL;
  random_fill(keys, KEYS * DIM, 1);
  random_fill(queries, QUERIES * DIM, 2);
  ice_error_init(&e);
  ice_index_options_init(&o, DIM);
  if (ice_index_new(&o, &index, &e)) return failed("new", &e);
  int result = run(index);
  if (result == EXIT_SUCCESS) result = save_and_load(index);
  ice_index_free(index);
  if (result == EXIT_SUCCESS) puts("index_only: ok");
  return result;
}
