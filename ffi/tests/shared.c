/* Several threads attend on one const session at once, beside others that save it and ask about it: the same bits as alone.
 *
 *   shared           as documented
 *   shared misuse    one thread appends and commits meanwhile, which the header forbids: for a sanitizer of races to see
 */
#include <iceformer.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 2600, DIM = 16, HEADS = 4, ROWS = 40, READERS = 3, TIMES = 6 };

static float q[HEADS * ROWS * DIM], k[2 * TOKENS * DIM], v[2 * TOKENS * DIM];
static float few[HEADS * DIM], many[HEADS * ROWS * DIM];
static ice_session *session;
static size_t saved_bytes;
static unsigned char *saved;

static void fail(const char *what, const char *why) {
  fprintf(stderr, "shared: %s: %s\n", what, why);
  exit(1);
}

static ice_tensor tensor(const float *x) {
  ice_tensor t = {x, ICE_F32, 0, 0, 0};
  return t;
}

static void attend(size_t rows, float *out, uint32_t nth) {
  ice_error e = {0};
  ice_tensor tq = tensor(q);
  ice_tensor_mut to = {out, ICE_F32, 0, 0, 0};
  for (uint32_t ith = 0; ith < nth; ith++)
    if (ice_session_attend(session, &tq, rows, NULL, &to, NULL, NULL, 0, ith, nth, NULL, &e)) fail("attend", e.message);
}

static void *reader(void *p) {
  float a[HEADS * DIM], *b = malloc(sizeof many);
  const int misuse = *(int *)p;
  if (!b) fail("reader", "no memory");
  for (int i = 0; i < TIMES; i++) {
    attend(1, a, 1);
    attend(ROWS, b, 1 + (uint32_t)i % 3);
    if (!misuse && (memcmp(a, few, sizeof a) || memcmp(b, many, sizeof many))) fail("attend", "other bits than alone");
  }
  free(b);
  return NULL;
}

static void *asker(void *p) {
  ice_memory m;
  ice_error e = {0};
  unsigned char *copy = malloc(saved_bytes);
  (void)p;
  ice_memory_init(&m);
  for (int i = 0; i < TIMES; i++) {
    if (!copy || ice_session_save_err(session, copy, saved_bytes, NULL, &e)) fail("save", e.message);
    if (memcmp(copy, saved, saved_bytes)) fail("save", "other bytes");
    if (ice_session_len(session) != TOKENS || ice_session_memory(session, &m)) fail("ask", "wrong");
  }
  free(copy);
  return NULL;
}

static void *writer(void *p) {
  ice_tensor t = tensor(k);
  (void)p;
  for (int i = 0; i < TIMES; i++) {
    ice_session_append(session, &t, &t, 1, 0, 1, NULL);
    ice_session_commit(session);
  }
  return NULL;
}

int main(int argc, char **argv) {
  int misuse = argc > 1 && !strcmp(argv[1], "misuse");
  unsigned long long x = 88172645463325252ull;
  for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    k[i] = (float)(x >> 40) / 8388608.0f - 1.0f;
    v[i] = (float)(x >> 20 & 0xffff) / 32768.0f - 1.0f;
    if (i < sizeof q / sizeof *q) q[i] = 3 * v[i];
  }
  const ice_mode modes[] = {ICE_MODE_EXACT, ICE_MODE_ACCELERATED, ICE_MODE_AUTO, ICE_MODE_TOP_K};
  for (int m = 0; m < 4; m++) {
    ice_error e = {0};
    ice_session_options o;
    ice_session_options_init(&o);
    o.heads_q = HEADS, o.heads_kv = 2, o.dim_k = DIM, o.capacity = TOKENS + 100;
    o.attention.mode = modes[m], o.attention.tolerance = 0.1f;
    ice_tensor tk = tensor(k), tv = tensor(v);
    if (ice_session_new(&o, &session, &e) || ice_session_append(session, &tk, &tv, TOKENS, 0, 1, &e) ||
        ice_session_commit_err(session, &e))
      fail("session", e.message);
    if (ice_session_save(session, NULL, 0, &saved_bytes) || !(saved = malloc(saved_bytes)) ||
        ice_session_save(session, saved, saved_bytes, NULL))
      fail("save", "refused");
    attend(1, few, 1);
    attend(ROWS, many, 1);
    pthread_t threads[READERS + 1];
    for (int i = 0; i < READERS; i++)
      if (pthread_create(&threads[i], NULL, reader, &misuse)) fail("thread", "none");
    if (pthread_create(&threads[READERS], NULL, misuse ? writer : asker, NULL)) fail("thread", "none");
    for (int i = 0; i <= READERS; i++) pthread_join(threads[i], NULL);
    free(saved);
    ice_session_free(session);
  }
  return 0;
}
