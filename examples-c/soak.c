/* Long runs: nothing drifts, nothing grows, nothing slows down.
 *
 *   soak run SECONDS         random appends, attends, truncates, removals, saves and loads on sessions and an index, attended
 *                            by several threads at once; answers checked against exact attention and brute force
 *   soak calls N             N short calls of every kind; memory stays flat
 *   soak steps N TOKENS      N decode steps at TOKENS tokens: the spread of their times
 */
#define _POSIX_C_SOURCE 200809L
#include "common/aligned.h"
#include "common/clock.h"
#include "common/random.h"

#include <iceformer.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADS_Q = 4, HEADS_KV = 2, DIM = 32, CAPACITY = 3000, ROWS = 24, THREADS = 3, KEYS = 4000 };

static int failed(const char *what, const char *why) {
  fprintf(stderr, "soak: %s: %s\n", what, why);
  return EXIT_FAILURE;
}

static uint64_t state = 1;
static size_t below(size_t n) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (size_t)(state >> 33) % n;
}

/* ---- Memory: what the hooks gave out, and what the process holds. ---- */

typedef struct counter {
  pthread_mutex_t lock;
  size_t blocks, bytes;
} counter;

static void *take(void *user, size_t size, size_t align) {
  counter *c = user;
  void *p = aligned_new(size, align);
  if (p == NULL) return NULL;
  pthread_mutex_lock(&c->lock);
  c->blocks++;
  c->bytes += size;
  pthread_mutex_unlock(&c->lock);
  return p;
}

static void give(void *user, void *ptr, size_t size, size_t align) {
  counter *c = user;
  (void)align;
  aligned_delete(ptr);
  pthread_mutex_lock(&c->lock);
  c->blocks--;
  c->bytes -= size;
  pthread_mutex_unlock(&c->lock);
}

static counter count = {PTHREAD_MUTEX_INITIALIZER, 0, 0};
static const ice_allocator hooks = {sizeof hooks, &count, take, give};

/* KiB of memory the process holds; 0 where the system does not say. */
static long resident(void) {
#ifdef _WIN32
  return 0;
#else
  long pages = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  if (f == NULL) return 0;
  if (fscanf(f, "%*s %ld", &pages) != 1) pages = 0;
  fclose(f);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
#endif
}

/* ---- The model: keys and values of all tokens, [head, token, dim]. ---- */

static float all_k[HEADS_KV][CAPACITY * DIM], all_v[HEADS_KV][CAPACITY * DIM], centres[32 * DIM];
static size_t tokens;

static float q[HEADS_Q * ROWS * DIM], out[HEADS_Q * ROWS * DIM], other[HEADS_Q * ROWS * DIM], want[HEADS_Q * ROWS * DIM];

static ice_tensor packed(const float *data) {
  const ice_tensor t = {data, ICE_F32, 0, 0, 0};
  return t;
}

static void fill_near_centres(float *x, size_t n) {
  random_fill(x, n * DIM, state);
  for (size_t t = 0; t < n; t++) {
    const float *c = centres + below(32) * DIM;
    for (size_t i = 0; i < DIM; i++) x[t * DIM + i] = 0.2f * x[t * DIM + i] + 2 * c[i];
  }
}

static int append(ice_session *const s[2], size_t n, ice_error *e) {
  static float k[HEADS_KV * CAPACITY * DIM], v[HEADS_KV * CAPACITY * DIM];
  fill_near_centres(k, HEADS_KV * n);
  fill_near_centres(v, HEADS_KV * n);
  for (size_t h = 0; h < HEADS_KV; h++) {
    memcpy(all_k[h] + tokens * DIM, k + h * n * DIM, n * DIM * sizeof *k);
    memcpy(all_v[h] + tokens * DIM, v + h * n * DIM, n * DIM * sizeof *v);
  }
  const ice_tensor tk = packed(k), tv = packed(v);
  for (int i = 0; i < 2; i++) {
    if (ice_session_append(s[i], &tk, &tv, n, 0, 1, e)) return failed("append", e->message);
    if (ice_session_commit(s[i])) return failed("commit", "refused");
  }
  tokens += n;
  return EXIT_SUCCESS;
}

static int remove_range(ice_session *const s[2], size_t begin, size_t end) {
  for (int i = 0; i < 2; i++) {
    const ice_status status = end == tokens ? ice_session_truncate(s[i], begin) : ice_session_remove_range(s[i], begin, end);
    if (status) return failed("remove", ice_status_message(status));
  }
  for (size_t h = 0; h < HEADS_KV; h++) {
    memmove(all_k[h] + begin * DIM, all_k[h] + end * DIM, (tokens - end) * DIM * sizeof **all_k);
    memmove(all_v[h] + begin * DIM, all_v[h] + end * DIM, (tokens - end) * DIM * sizeof **all_v);
  }
  tokens -= end - begin;
  return EXIT_SUCCESS;
}

static int reload(ice_session **s) {
  ice_error e;
  size_t bytes = 0;
  ice_error_init(&e);
  if (ice_session_save(*s, NULL, 0, &bytes)) return failed("save", "size unknown");
  void *buf = malloc(bytes);
  if (buf == NULL) return failed("save", "no memory");
  ice_status status = ice_session_save(*s, buf, bytes, NULL);
  ice_session_free(*s);
  *s = NULL;
  if (status == ICE_OK) status = ice_session_load(buf, bytes, &hooks, s, &e);
  free(buf);
  return status == ICE_OK ? EXIT_SUCCESS : failed("save and load", e.message);
}

/* ---- Attending by several threads at once. ---- */

typedef struct job {
  const ice_session *session;
  size_t rows;
  float *out;
  void *work;
  size_t work_bytes;
  uint32_t ith, nth;
  ice_status status;
} job;

static void *attend_part(void *argument) {
  job *j = argument;
  const ice_tensor tq = packed(q);
  const ice_tensor_mut to = {j->out, ICE_F32, 0, 0, 0};
  j->status = ice_session_attend(j->session, &tq, j->rows, NULL, &to, NULL, j->work, j->work_bytes, j->ith, j->nth, NULL, NULL);
  return NULL;
}

static int attend_with(const ice_session *s, size_t rows, uint32_t nth, float *to) {
  static unsigned char *work;
  static size_t have;
  size_t bytes = 0, align = 0;
  pthread_t thread[THREADS];
  job jobs[THREADS];
  if (ice_session_work_required(s, rows, nth, &bytes, &align)) return failed("work", "size unknown");
  if (bytes > have) {
    aligned_delete(work);
    have = bytes;
    work = aligned_new(have, align);
    if (work == NULL) return failed("work", "no memory");
  }
  for (uint32_t i = 0; i < nth; i++) {
    const job j = {s, rows, to, work, bytes, i, nth, ICE_OK};
    jobs[i] = j;
    if (i > 0 && pthread_create(&thread[i], NULL, attend_part, &jobs[i]) != 0) return failed("attend", "no thread");
  }
  attend_part(&jobs[0]);
  for (uint32_t i = 1; i < nth; i++) pthread_join(thread[i], NULL);
  for (uint32_t i = 0; i < nth; i++) {
    if (jobs[i].status != ICE_OK) return failed("attend", ice_status_message(jobs[i].status));
  }
  return EXIT_SUCCESS;
}

static double error_of(const float *a, size_t n) {
  double off = 0, size = 0;
  for (size_t i = 0; i < n; i++) {
    off += ((double)a[i] - (double)want[i]) * ((double)a[i] - (double)want[i]);
    size += (double)want[i] * (double)want[i];
  }
  return sqrt(off / size);
}

static double worst_exact, worst_accelerated, sum_accelerated;
static uint64_t checks;

/* Both sessions on the same rows, alone and in parts, against softmax in double precision. */
static int check(ice_session *const s[2]) {
  const size_t rows = 1 + below(tokens < ROWS ? tokens : ROWS), n = HEADS_Q * rows * DIM;
  static double weight[CAPACITY];
  random_fill(q, n, state);
  for (size_t h = 0; h < HEADS_Q; h++) {
    const float *k = all_k[h / (HEADS_Q / HEADS_KV)], *v = all_v[h / (HEADS_Q / HEADS_KV)];
    for (size_t r = 0; r < rows; r++) {
      const size_t visible = tokens - rows + r + 1;
      double best = -INFINITY, sum = 0, mix[DIM] = {0};
      for (size_t j = 0; j < visible; j++) {
        double dot = 0;
        for (size_t i = 0; i < DIM; i++) dot += (double)q[(h * rows + r) * DIM + i] * (double)k[j * DIM + i];
        weight[j] = dot / sqrt(DIM);
        best = fmax(best, weight[j]);
      }
      for (size_t j = 0; j < visible; j++) {
        const double w = exp(weight[j] - best);
        sum += w;
        for (size_t i = 0; i < DIM; i++) mix[i] += w * (double)v[j * DIM + i];
      }
      for (size_t i = 0; i < DIM; i++) want[(h * rows + r) * DIM + i] = (float)(mix[i] / sum);
    }
  }
  for (int i = 0; i < 2; i++) {
    if (attend_with(s[i], rows, 1, out) || attend_with(s[i], rows, THREADS, other)) return EXIT_FAILURE;
    if (memcmp(out, other, n * sizeof *out) != 0) return failed("check", "bits depend on the number of parts");
    const double error = error_of(out, n);
    if (i == 0) worst_exact = fmax(worst_exact, error);
    if (i == 1) worst_accelerated = fmax(worst_accelerated, error), sum_accelerated += error;
    if (!(error < (i == 0 ? 1e-5 : 0.2))) {
      fprintf(stderr, "soak: error %g of session %d, %zu rows, %zu tokens\n", error, i, rows, tokens);
      return EXIT_FAILURE;
    }
  }
  checks++;
  return EXIT_SUCCESS;
}

/* Keys come and go; with no budget the index answers as brute force does. */
static int churn(ice_index *index) {
  static float keys[64 * DIM];
  ice_neighbor found[10], exact[10];
  ice_query_options o;
  ice_error e;
  ice_error_init(&e);
  const size_t n = 1 + below(64);
  fill_near_centres(keys, n);
  uint64_t gone[64];
  for (size_t i = 0; i < 64; i++) gone[i] = below(KEYS);
  size_t removed = 0;
  if (ice_index_remove(index, gone, ice_index_len(index) > KEYS / 2 ? 64 : 8, &removed)) return failed("index", "remove refused");
  for (size_t i = 0; i < n; i++) {
    const uint64_t id = below(KEYS);
    const ice_status status = ice_index_insert(index, keys + i * DIM, 1, &id, &e);
    if (status != ICE_OK && status != ICE_ERR_DUPLICATE) return failed("index", e.message);
  }
  ice_query_options_init(&o, 10);
  o.visit_fraction = o.retrieve_fraction = 1;
  o.field_of_view = UINT32_MAX;
  if (ice_index_query(index, NULL, keys, 1, &o, found, NULL, &e)) return failed("query", e.message);
  if (ice_index_query_exact(index, NULL, keys, 1, &o, exact, NULL, &e)) return failed("query", e.message);
  for (int i = 0; i < 10; i++) {
    if (found[i].id != exact[i].id) return failed("query", "differs from brute force");
  }
  return EXIT_SUCCESS;
}

static ice_session *new_session(ice_mode mode, size_t capacity, const ice_allocator *allocator) {
  ice_session_options o;
  ice_session *s = NULL;
  ice_error e;
  ice_error_init(&e);
  ice_session_options_init(&o);
  o.heads_q = HEADS_Q;
  o.heads_kv = HEADS_KV;
  o.dim_k = DIM;
  o.capacity = capacity;
  o.allocator = allocator;
  o.attention.mode = mode;
  if (ice_session_new(&o, &s, &e)) failed("session", e.message);
  return s;
}

static int soak_for(double seconds) {
  ice_index_options o;
  ice_index *index = NULL;
  ice_index_options_init(&o, DIM);
  o.levels = 2;
  o.capacity = KEYS;
  o.allocator = &hooks;
  ice_error e;
  ice_error_init(&e);
  ice_session *s[2] = {new_session(ICE_MODE_EXACT, CAPACITY, &hooks), new_session(ICE_MODE_ACCELERATED, CAPACITY, &hooks)};
  if (s[0] == NULL || s[1] == NULL || ice_index_new(&o, &index, &e)) return failed("new", e.message);
  const size_t bytes = count.bytes, blocks = count.blocks;
  const double begin = clock_seconds();
  double said = 0;
  long warm = 0, high = 0;
  uint64_t steps = 0;
  for (double now = 0; now < seconds || steps < 600; now = clock_seconds() - begin) {
    const size_t what = below(20);
    int bad = EXIT_SUCCESS;
    if (what < 8 && tokens < CAPACITY) {
      const size_t room = CAPACITY - tokens, most = below(4) == 0 ? 600 : 3;
      bad = append(s, 1 + below(room < most ? room : most), &e);
    } else if (what < 10 && tokens > 0) {
      const size_t from = below(tokens), most = below(3) == 0 ? tokens - from : 20;
      const size_t n = 1 + below(most);
      bad = remove_range(s, from, from + n > tokens ? tokens : from + n);
    } else if (what == 10) {
      bad = reload(&s[0]) || reload(&s[1]);
    } else if (what == 11 && below(30) == 0) {
      bad = ice_session_reset(s[0]) || ice_session_reset(s[1]);
      tokens = 0;
    } else if (what < 15) {
      bad = churn(index);
    } else if (tokens > 0) {
      bad = check(s);
    }
    if (bad) return EXIT_FAILURE;
    if (ice_session_len(s[0]) != tokens || ice_session_len(s[1]) != tokens) return failed("check", "lengths differ");
    if (count.bytes != bytes || count.blocks != blocks) return failed("check", "an object grew");
    steps++;
    /* Calls take and give back work memory: the most held since is compared with the most held at first, when everything has
       been used a few times. */
    long *most = now < seconds / 10 || steps < 300 ? &warm : &high;
    const long held = resident();
    if (held > *most) *most = held;
    if (now - said >= 60) {
      said = now;
      printf("%5.0f s: %llu operations, %llu checks, %ld KiB\n", now, (unsigned long long)steps, (unsigned long long)checks, resident());
      fflush(stdout);
    }
  }
  printf("soak: %llu operations, %llu checks, error exact %.1e at most, accelerated %.3f at most, %.4f mean, memory %ld KiB at most "
         "in the first tenth, %ld KiB since\n",
         (unsigned long long)steps, (unsigned long long)checks, worst_exact, worst_accelerated,
         sum_accelerated / (double)(checks ? checks : 1), warm, high);
  ice_session_free(s[0]);
  ice_session_free(s[1]);
  ice_index_free(index);
  if (count.bytes != 0 || count.blocks != 0) return failed("check", "memory was not given back");
  if (high > warm + warm / 20 + 2048) return failed("check", "the process grew");
  return EXIT_SUCCESS;
}

/* Every kind of short call, over and over. */
static int many_calls(uint64_t n) {
  ice_session *s = new_session(ICE_MODE_AUTO, 64, &hooks);
  ice_index_options o;
  ice_index *index = NULL;
  ice_error e;
  ice_neighbor found[4];
  ice_query_options qo;
  float row[DIM];
  ice_error_init(&e);
  ice_index_options_init(&o, DIM);
  o.allocator = &hooks;
  random_fill(q, HEADS_Q * DIM, 1);
  random_fill(all_k[0], 64 * DIM, 2);
  if (s == NULL || ice_index_new(&o, &index, &e)) return failed("new", e.message);
  const double begin = clock_seconds();
  long warm = 0;
  for (uint64_t i = 0; i < n; i++) {
    const ice_tensor t = packed(all_k[0]), tq = packed(q);
    const ice_tensor_mut to = {out, ICE_F32, 0, 0, 0};
    ice_status status = ICE_OK;
    const uint64_t id = i / 8 % 50;
    switch (i % 8) {
    case 0: status = ice_session_append(s, &t, &t, 1, 0, 1, &e); break;
    case 1: status = ice_session_commit(s); break;
    case 2: status = ice_session_attend(s, &tq, 1, NULL, &to, NULL, NULL, 0, 0, 1, NULL, &e); break;
    case 3: status = ice_session_len(s) > 40 ? ice_session_truncate(s, 3) : ICE_OK; break;
    case 4: status = ice_index_insert(index, all_k[0] + id * DIM, 1, &id, &e); break;
    case 5:
      ice_query_options_init(&qo, 4);
      status = ice_index_query(index, NULL, q, 1, &qo, found, NULL, &e);
      break;
    case 6: status = ice_index_len(index) == 50 ? ice_index_clear(index) : ICE_OK; break;
    default:
      /* A refusal is a call too. */
      row[0] = NAN;
      if (ice_index_insert(index, row, 1, NULL, &e) == ICE_OK) return failed("calls", "NaN was taken");
    }
    if (status != ICE_OK) return failed("calls", ice_status_name(status));
    if (i == n / 10) warm = resident();
  }
  const double seconds = clock_seconds() - begin;
  const long high = resident();
  printf("calls: %llu in %.1f s (%.2f us each), memory %ld KiB after a tenth, %ld KiB at the end\n", (unsigned long long)n, seconds,
         seconds * 1e6 / (double)n, warm, high);
  ice_session_free(s);
  ice_index_free(index);
  if (count.bytes != 0 || count.blocks != 0) return failed("check", "memory was not given back");
  return high > warm + 1024 ? failed("check", "the process grew") : EXIT_SUCCESS;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Seconds that so many rounds of nothing take. */
static double idle(size_t rounds) {
  volatile double x = 1;
  const double begin = clock_seconds();
  for (size_t i = 0; i < rounds; i++) x *= 1.0000001;
  return clock_seconds() - begin;
}

static void spread(const char *what, double *times, size_t n) {
  qsort(times, n, sizeof *times, ascending);
  const double median = times[n / 2], high = times[n - 1 - n / 100];
  printf("%s: median %.1f us, p99 %.1f us (%.2f times), most %.1f us\n", what, median * 1e6, high * 1e6, high / median,
         times[n - 1] * 1e6);
}

/* One token at a time, at `length` to `length + ROOM` tokens: back to `length` where there are more. After each step a loop that
 * does nothing for as long: what is slow there is slow for reasons of the machine. */
static int steps(size_t n, size_t length) {
  enum { ROOM = 4096 };
  double *times = malloc(n * sizeof *times), *idles = malloc(n * sizeof *idles);
  size_t rounds = 10000;
  float *k = malloc(length * HEADS_KV * DIM * sizeof *k);
  ice_session *s = new_session(ICE_MODE_AUTO, length + ROOM, NULL);
  ice_error e;
  size_t bytes = 0, align = 0;
  ice_error_init(&e);
  if (times == NULL || idles == NULL || k == NULL || s == NULL) return failed("steps", "no memory");
  fill_near_centres(k, length * HEADS_KV);
  const ice_tensor t = packed(k), tq = packed(q);
  const ice_tensor_mut to = {out, ICE_F32, 0, 0, 0};
  if (ice_session_append(s, &t, &t, length, 0, 1, &e) || ice_session_commit(s)) return failed("append", e.message);
  if (ice_session_work_required(s, 1, 1, &bytes, &align)) return failed("work", "size unknown");
  void *work = aligned_new(bytes, align);
  if (work == NULL) return failed("work", "no memory");
  for (size_t i = 0; i < n; i++) {
    random_fill(q, HEADS_Q * DIM, i);
    const ice_tensor one = packed(k + below(length - 1) * HEADS_KV * DIM);
    const double begin = clock_seconds();
    if (ice_session_append(s, &one, &one, 1, 0, 1, &e) || ice_session_commit(s)) return failed("append", e.message);
    if (ice_session_attend(s, &tq, 1, NULL, &to, NULL, work, bytes, 0, 1, NULL, &e)) return failed("attend", e.message);
    times[i] = clock_seconds() - begin;
    /* Outside of what is timed. */
    idles[i] = idle(rounds);
    /* As long as the median step: as often too short as too long. */
    if (i < n / 100) rounds = idles[i] < times[i] ? rounds + rounds / 16 : rounds - rounds / 16;
    if (ice_session_len(s) == length + ROOM && ice_session_truncate(s, length)) return failed("truncate", "refused");
  }
  printf("steps: %zu at %zu tokens\n", n, length);
  spread("steps", times, n);
  spread("idle loops between them", idles + n / 100, n - n / 100);
  ice_session_free(s);
  free(times);
  free(idles);
  aligned_delete(work);
  free(k);
  return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
  random_fill(centres, sizeof centres / sizeof *centres, 9);
  int result = EXIT_FAILURE;
  if (argc == 3 && strcmp(argv[1], "run") == 0) {
    result = soak_for(strtod(argv[2], NULL));
  } else if (argc == 3 && strcmp(argv[1], "calls") == 0) {
    result = many_calls(strtoull(argv[2], NULL, 10));
  } else if (argc == 4 && strcmp(argv[1], "steps") == 0 && strtoull(argv[3], NULL, 10) > 1 && strtoull(argv[2], NULL, 10) > 0) {
    result = steps((size_t)strtoull(argv[2], NULL, 10), (size_t)strtoull(argv[3], NULL, 10));
  } else {
    return failed("usage", "soak run SECONDS | calls N | steps N TOKENS");
  }
  if (result == EXIT_SUCCESS) puts("soak: ok");
  return result;
}
