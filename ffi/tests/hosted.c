/* What a host process does around the library: small stacks, fork, signals, limits on threads.
 *
 *   hosted stack         runs every kind of call on painted stacks; prints "stack NAME BYTES", the most that was used
 *   hosted fork          the same bits in a child, after the parent had threads
 *   hosted signals       calls under a storm of signals, same bits
 *   hosted threads       no new threads are allowed: a status or the right answer
 */
#define _GNU_SOURCE
#include <iceformer.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEYS = 4096, DIM = 64, STACK = 1 << 20, PAINT = 0xa5 };

static float q[KEYS * DIM], k[KEYS * DIM], v[KEYS * DIM], out[KEYS * DIM], twin[KEYS * DIM];

static void fail(const char *what, const char *why) {
  fprintf(stderr, "hosted: %s: %s\n", what, why);
  exit(1);
}

static float noise(void) {
  static unsigned long long x = 88172645463325252ull;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return (float)(x >> 40) / 8388608.0f - 1.0f;
}

static ice_attention_desc describe(ice_mode mode, size_t rows, size_t keys) {
  ice_attention_desc d;
  ice_attention_desc_init(&d);
  d.dim_k = DIM, d.rows_q = rows, d.rows_kv = keys;
  d.q.data = q, d.k.data = k, d.v.data = v, d.out.data = out;
  d.mask.kind = ICE_MASK_CAUSAL;
  d.options.mode = mode;
  return d;
}

static ice_status attend(ice_mode mode, size_t rows, uint32_t threads) {
  ice_error e = {0};
  ice_attention_desc d = describe(mode, rows, KEYS);
  d.options.num_threads = threads;
  return ice_attention(&d, NULL, 0, NULL, &e);
}

/* One kind of call: mode, rows, flags; or a whole life of a session or an index. */
typedef struct {
  const char *name;
  ice_mode mode;
  size_t rows;
  uint32_t flags;
  ice_dtype dtype;
} kind;

static const kind KINDS[] = {
    {"exact of a row", ICE_MODE_EXACT, 1, 0, ICE_F32},
    {"exact", ICE_MODE_EXACT, 200, 0, ICE_F32},
    {"exact in fixed point", ICE_MODE_EXACT, 200, ICE_ATTENTION_FIXED_SCORES, ICE_F32},
    {"certified", ICE_MODE_EXACT, 100, ICE_ATTENTION_CERTIFICATE, ICE_F32},
    {"accelerated of a row", ICE_MODE_ACCELERATED, 1, 0, ICE_F32},
    {"accelerated", ICE_MODE_ACCELERATED, 1000, 0, ICE_F32},
    {"automatic", ICE_MODE_AUTO, 1000, 0, ICE_F32},
    {"top-k", ICE_MODE_TOP_K, 8, 0, ICE_F32},
};

static void *one_call(void *p) {
  const kind *c = p;
  ice_error e = {0};
  ice_attention_desc d = describe(c->mode, c->rows, c->mode == ICE_MODE_TOP_K ? 1024 : KEYS);
  d.options.flags = c->flags;
  if (ice_attention(&d, NULL, 0, NULL, &e)) fail(c->name, e.message);
  return NULL;
}

static size_t take(void *user, const void *from, size_t n) { return fwrite(from, 1, n, user); }
static size_t give(void *user, void *to, size_t n) { return fread(to, 1, n, user); }

static void *session_life(void *p) {
  const kind *c = p;
  ice_error e = {0};
  ice_session_options o;
  ice_session *s, *loaded;
  ice_session_options_init(&o);
  o.heads_kv = 1, o.dim_k = DIM, o.capacity = KEYS, o.attention.mode = c->mode, o.kv_dtype = c->dtype;
  if (ice_session_new(&o, &s, &e)) fail(c->name, e.message);
  ice_tensor tq = {q, ICE_F32, 0, 0, 0}, tk = {k, ICE_F32, 0, 0, 0}, tv = {v, ICE_F32, 0, 0, 0};
  ice_tensor_mut to = {out, ICE_F32, 0, 0, 0};
  size_t rows = c->mode == ICE_MODE_TOP_K ? 500 : KEYS - 100;
  if (ice_session_append(s, &tk, &tv, rows, 0, 1, &e) || ice_session_commit_err(s, &e)) fail(c->name, e.message);
  for (size_t n = 1; n <= c->rows; n *= 10)
    if (ice_session_attend(s, &tq, n, NULL, &to, NULL, NULL, 0, 0, 1, NULL, &e)) fail(c->name, e.message);
  if (ice_session_remove_range_err(s, 10, 400, &e) || ice_session_truncate_err(s, 60, &e)) fail(c->name, e.message);
  FILE *f = tmpfile();
  ice_load_options from;
  ice_load_options_init(&from);
  from.read = give, from.user = f, from.memory_limit = 1u << 30;
  if (!f || ice_session_save_to(s, take, f, &e)) fail(c->name, e.message);
  rewind(f);
  if (ice_session_load_with(&from, &loaded, &e)) fail(c->name, e.message);
  fclose(f);
  ice_session_free(loaded);
  ice_session_free(s);
  return NULL;
}

static void *index_life(void *p) {
  const kind *c = p;
  ice_error e = {0};
  ice_index_options o;
  ice_query_options ask;
  ice_index *ix;
  static ice_neighbor found[16 * 64];
  ice_index_options_init(&o, DIM);
  ice_query_options_init(&ask, 8);
  o.levels = 3;
  if (ice_index_new(&o, &ix, &e) || ice_index_insert(ix, k, 2000, NULL, &e)) fail(c->name, e.message);
  if (ice_index_fit(ix, q, 500)) fail(c->name, "fit");
  for (size_t n = 1; n <= 64; n *= 8)
    if (ice_index_query(ix, NULL, q, n, &ask, found, NULL, &e) || ice_index_query_exact(ix, NULL, q, n, &ask, found, NULL, &e))
      fail(c->name, e.message);
  ice_tensor tv = {v, ICE_F32, 0, 0, 0};
  if (ice_index_attention(ix, NULL, q, 200, &tv, DIM, NULL, NULL, out, NULL, &e)) fail(c->name, e.message);
  ice_index_free(ix);
  return NULL;
}

/* Bytes of a painted stack that a call wrote, and what the thread itself takes. */
static size_t used(void *(*body)(void *), const kind *c) {
  unsigned char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack == MAP_FAILED) fail(c->name, "no memory");
  memset(stack, PAINT, STACK);
  pthread_attr_t a;
  pthread_t t;
  if (pthread_attr_init(&a) || pthread_attr_setstack(&a, stack, STACK) || pthread_create(&t, &a, body, (void *)c) ||
      pthread_join(t, NULL))
    fail(c->name, "no thread");
  size_t clean = 0;
  while (clean < STACK && stack[clean] == PAINT) clean++;
  munmap(stack, STACK);
  return STACK - clean;
}

static void *nothing(void *p) { return p; }

static void stacks(void) {
  size_t worst = 0, n;
  const kind none = {"of an empty thread", 0, 0, 0, ICE_F32};
  printf("stack %s %zu\n", none.name, used(nothing, &none));
  for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
    n = used(one_call, &KINDS[i]);
    printf("stack %s %zu\n", KINDS[i].name, n);
    worst = n > worst ? n : worst;
  }
  const kind lives[] = {{"session, exact", ICE_MODE_EXACT, 100, 0, ICE_F16},
                        {"session, automatic", ICE_MODE_AUTO, 1000, 0, ICE_BF16},
                        {"session, accelerated", ICE_MODE_ACCELERATED, 1000, 0, ICE_F32},
                        {"session, top-k", ICE_MODE_TOP_K, 10, 0, ICE_F32}};
  for (size_t i = 0; i < sizeof lives / sizeof *lives; i++) {
    n = used(session_life, &lives[i]);
    printf("stack %s %zu\n", lives[i].name, n);
    worst = n > worst ? n : worst;
  }
  const kind index = {"index", 0, 0, 0, ICE_F32};
  n = used(index_life, &index);
  printf("stack index %zu\n", n);
  printf("worst %zu\n", n > worst ? n : worst);
}

static void check(const char *what, ice_mode mode, uint32_t threads) {
  memset(out, 0, sizeof out);
  if (attend(mode, KEYS, threads)) fail(what, "refused");
  if (memcmp(out, twin, sizeof out)) fail(what, "other bits");
}

static void remember(ice_mode mode) {
  if (attend(mode, KEYS, 4)) fail("before", "refused");
  memcpy(twin, out, sizeof out);
}

static void forks(void) {
  remember(ICE_MODE_ACCELERATED);
  pid_t child = fork();
  if (child == 0) {
    check("the child", ICE_MODE_ACCELERATED, 4);
    _exit(0);
  }
  int status;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status)) fail("fork", "the child failed");
  check("the parent", ICE_MODE_ACCELERATED, 4);
}

static volatile sig_atomic_t hits;
static void hit(int signal) {
  (void)signal;
  hits++;
}

static void signals(void) {
  struct sigaction act;
  struct itimerval every = {{0, 300}, {0, 300}}, never;
  memset(&act, 0, sizeof act);
  memset(&never, 0, sizeof never);
  act.sa_handler = hit;
  for (ice_mode mode = ICE_MODE_EXACT; mode <= ICE_MODE_ACCELERATED; mode++) {
    remember(mode);
    if (sigaction(SIGALRM, &act, NULL) || setitimer(ITIMER_REAL, &every, NULL)) fail("signals", "no timer");
    check("under signals", mode, 4);
    setitimer(ITIMER_REAL, &never, NULL);
  }
  if (hits < 3) fail("signals", "none came");
}

/* No thread can be started: each call gives its status, or its answer by the threads that there are. */
static void limits(void) {
  const uint32_t many[] = {2, 64, 1000, 1000000, 4294967295u};
  const ice_mode modes[] = {ICE_MODE_EXACT, ICE_MODE_ACCELERATED};
  int refused = 0, answered = 0;
  for (int m = 0; m < 2; m++) {
    remember(modes[m]);
    pid_t child = fork();
    if (child == 0) {
      /* Limits on processes do not bind root: it becomes somebody else. */
      struct rlimit none = {1, 1};
      if (setrlimit(RLIMIT_NPROC, &none) || (getuid() == 0 && setuid(65534))) _exit(3);
      int no = 0, yes = 0;
      for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
        memset(out, 0, sizeof out);
        ice_status s = attend(modes[m], KEYS, many[i]);
        if (s == ICE_ERR_INTERNAL) _exit(4);
        if (!s && memcmp(out, twin, sizeof out)) _exit(5);
        s ? no++ : yes++;
      }
      _exit(10 + no + 10 * yes);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) fail("limits", "the child died");
    int code = WEXITSTATUS(status);
    if (code < 10) fail("limits", code == 3 ? "could not be set" : code == 4 ? "an internal error" : "other bits");
    refused += (code - 10) % 10, answered += (code - 10) / 10;
  }
  printf("answered %d refused %d\n", answered, refused);
}

int main(int argc, char **argv) {
  for (size_t i = 0; i < KEYS * DIM; i++) {
    q[i] = noise();
    k[i] = noise() + 2 * (float)(i / (64 * 300) % 3) * (float)(i % 64 == 3);
    v[i] = noise();
  }
  const char *what = argc > 1 ? argv[1] : "";
  if (!strcmp(what, "stack")) stacks();
  else if (!strcmp(what, "fork")) forks();
  else if (!strcmp(what, "signals")) signals();
  else if (!strcmp(what, "threads")) limits();
  else return 2;
  return 0;
}
