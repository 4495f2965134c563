/* Two nearest of four keys: what a consumer builds to see that package and library fit. */
#include <iceformer.h>
#include <stdio.h>

int main(void) {
  const float keys[4][2] = {{1, 0}, {0, 1}, {2, 1}, {-1, 3}}, query[2] = {1, 1};
  ice_index_options options;
  ice_query_options want;
  ice_index *index = NULL;
  ice_neighbor found[2];
  ice_error error;
  if (ice_version_number() != ICE_VERSION_NUMBER || ice_abi_version() != ICE_ABI_VERSION) {
    fprintf(stderr, "header %s, library %s\n", ICE_VERSION_STRING, ice_version_string());
    return 1;
  }
  ice_error_init(&error);
  ice_index_options_init(&options, 2);
  ice_query_options_init(&want, 2);
  if (ice_index_new(&options, &index, &error) || ice_index_insert(index, &keys[0][0], 4, NULL, &error) ||
      ice_index_query(index, NULL, query, 1, &want, found, NULL, &error)) {
    fprintf(stderr, "%s\n", error.message);
    ice_index_free(index);
    return 1;
  }
  printf("%d %.1f\n%d %.1f\n", (int)found[0].id, (double)found[0].score, (int)found[1].id, (double)found[1].score);
  ice_index_free(index);
  return 0;
}
