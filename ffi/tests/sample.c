#include <iceformer.h>
#include <math.h>
#include <stdio.h>
static float q[4096 * 64], k[4096 * 64], v[4096 * 64], out[4096 * 64];
int main(void) {
  for (int i = 0; i < 4096 * 64; i++) q[i] = k[i] = v[i] = 0.5f * sinf((float)i); /* yours */
  ice_attention_desc d; ice_attention_stats s; ice_error e;
  ice_attention_desc_init(&d); ice_attention_stats_init(&s); ice_error_init(&e);
  d.dim_k = 64; d.rows_q = d.rows_kv = 4096; d.mask.kind = ICE_MASK_CAUSAL; d.q.data = q; d.k.data = k; d.v.data = v; d.out.data = out;
  if (ice_attention(&d, NULL, 0, &s, &e)) return fprintf(stderr, "%s\n", e.message), 1;
  return printf("%.0f %% of the pairs, error %.4f\n", 100.0 * (double)s.pairs / (double)s.pairs_dense, s.measured_error) < 0;
}
