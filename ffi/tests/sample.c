#include <iceformer.h>
#include <stdio.h>
int main(void) {
  float keys[4][2] = {{1,0},{0,1},{2,1},{-1,3}}, q[2] = {1,1};
  ice_index_options o; ice_index_options_init(&o, 2);
  ice_index *ix = NULL; ice_error e; ice_error_init(&e);
  if (ice_index_new(&o, &ix, &e) || ice_index_insert(ix, &keys[0][0], 4, NULL, &e)) return fprintf(stderr, "%s\n", e.message), 1;
  ice_query_options qo; ice_query_options_init(&qo, 2);          /* k = 2 */
  ice_neighbor nn[2]; uint32_t got = 0;
  if (ice_index_query(ix, NULL, q, 1, &qo, nn, &got, &e)) return fprintf(stderr, "%s\n", e.message), 1;
  for (uint32_t i = 0; i < got; i++) printf("%llu %.1f\n", (unsigned long long)nn[i].id, nn[i].score);   /* 2 3.0 / 3 2.0 */
  ice_index_free(ix); return 0;
}
