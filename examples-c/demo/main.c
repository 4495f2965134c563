/* iceformer-demo: exact and accelerated attention on queries, keys and values of a trained model, and what it errs by. */
#include "../common/clock.h"
#include "layers.h"
#include "measure.h"
#include "options.h"
#include "picture.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifndef DEMO_DATA
#define DEMO_DATA "data/smollm2.safetensors"
#endif
/* What DEMO_DATA was captured with, and how often its text stands. */
#define DEMO_ROPE_BASE 100000
#define DEMO_REPEAT 2

/* f32 sums over thousands of keys stay well below this; more means a wrong result. */
#define EXACT_LIMIT 1e-4
/* Far beyond the default tolerance: more means a wrong result, not an estimate. */
#define ACCELERATED_LIMIT 0.5
/* What a call gains less than this is noise of the machine. */
#define GAIN 1.05

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, BAR = 30 };

static void no_progress(const measure *m, uint64_t number, const char *what) { (void)m, (void)number, (void)what; }

static void show_progress(const measure *m, uint64_t number, const char *what) {
  size_t full = BAR * m->steps_done / m->steps_all;
  fputs("\r\033[K[", stderr);
  for (size_t i = 0; i < BAR; i++) fputc(i < full ? '#' : '.', stderr);
  fprintf(stderr, "] layer %" PRIu64 ": %s", number, what);
  fflush(stderr);
}

static void clear_progress(const measure *m) {
  if (m->progress == show_progress) fputs("\r\033[K", stderr);
}

/* Text from the file, with whatever a terminal might act on left out. */
static void print_plain(const char *text) {
  for (; *text != 0; text++) putchar((unsigned char)*text < 0x20 || *text == 0x7F ? '?' : *text);
}

static size_t rows_used(const layer *l, const options *o) {
  return o->rows != 0 && o->rows < l->rows ? (size_t)o->rows : l->rows;
}

static void print_start(const model *m, const options *o) {
  const char *source = st_metadata(&m->file, "source");
  printf("iceformer %s, %s, %" PRIu32 " thread%s", ice_version_string(), ice_isa_name(), o->threads,
         o->threads == 1 ? "" : "s");
  if (source != NULL) {
    printf("; ");
    print_plain(source);
  }
  printf("\n");
  if (m->copies > 1) {
    size_t rows = m->layers[0].rows;
    printf("The captured text of %zu tokens stands %zu times, one after another: %zu tokens. Later copies have the queries, keys\n"
           "and values that the model computed for the first, with queries and keys rotated on to their positions (rotary\n"
           "embedding of base %g). The model itself read the text once.\n",
           rows / m->copies, m->copies, rows, m->rope_base);
  }
  fflush(stdout);
}

/* What was measured, summed up. */
typedef struct sums {
  double seconds[RUN_MODES], error[RUN_MODES], worst_p99, measured, pairs, pairs_dense, mass;
  size_t layers, measured_layers, exact_layers;
} sums;

static void add(sums *to, const layer_result *x) {
  for (int mode = 0; mode < RUN_MODES; mode++) {
    to->seconds[mode] += x->seconds[mode];
    to->error[mode] += x->error[mode].mean;
  }
  if (x->error[RUN_FAST].p99 > to->worst_p99) to->worst_p99 = x->error[RUN_FAST].p99;
  to->pairs += (double)x->stats.pairs;
  to->pairs_dense += (double)x->stats.pairs_dense;
  to->mass += x->mass;
  to->layers++;
  if (x->stats.mode == ICE_MODE_EXACT) {
    to->exact_layers++;
  } else if (!isnan(x->stats.measured_error)) {
    to->measured += (double)x->stats.measured_error;
    to->measured_layers++;
  }
}

static const char *why_exact(ice_reason reason) {
  return reason == ICE_REASON_SHORT     ? "the prompt is short"
         : reason == ICE_REASON_DIFFUSE ? "cells would cost as much"
                                        : "no faster way keeps the tolerance";
}

static void print_layer(const model *m, const layer *l, const options *o, const layer_result *x) {
  size_t rows = rows_used(l, o);
  const char *note = layer_note(m, l);
  const ice_attention_stats *s = &x->stats;
  printf("\nlayer %" PRIu64, l->number);
  if (note != NULL) {
    printf(", ");
    print_plain(note);
  }
  printf(" (%zu query / %zu KV heads of %zu, %zu tokens, ", l->heads_q, l->heads_kv, l->dim_k, rows);
  if (l->first > 0) printf("queries of the last %zu, ", rows - l->first);
  printf("%s)\n", l->causal ? "causal" : "not causal");
  printf("  exact        %8.1f ms   error %.1e, %.1f MiB of work memory\n", 1e3 * x->seconds[RUN_EXACT],
         x->error[RUN_EXACT].mean, (double)x->work[RUN_EXACT] / 1048576);
  if (s->mode == ICE_MODE_EXACT) {
    printf("  verdict: attended exactly, because %s\n", why_exact(s->reason));
    return;
  }
  printf("  accelerated  %8.1f ms   error %.2f %%, measured by the call itself: ", 1e3 * x->seconds[RUN_FAST],
         100 * x->error[RUN_FAST].mean);
  if (isnan(s->measured_error)) {
    printf("-");
  } else {
    printf("%.2f %%", 100 * (double)s->measured_error);
  }
  printf("; %.0f %% of the pairs scored, %.1f MiB\n", 100 * (double)s->pairs / (double)s->pairs_dense,
         (double)x->work[RUN_FAST] / 1048576);
}

/* Speed and error in one line. */
static void print_verdict(double exact, double fast, double error, double measured, double p99, double tolerance) {
  double gain = exact / fast;
  if (gain >= GAIN) {
    printf("%.2f times as fast as exact attention", gain);
  } else {
    printf("no gain (%.2f times the speed of exact attention)", gain);
  }
  printf(", error %.1f %% of a tolerance of %g %%", 100 * error, 100 * tolerance);
  if (error > tolerance) printf(": NOT KEPT");
  if (!isnan(measured)) printf(", measured %.1f %%", 100 * measured);
  printf("; 99 of 100 rows within %.0f %%\n", 100 * p99);
}

static void print_top_k(const layer_result *x, uint32_t keys) {
  printf("  top-k        %8.1f ms   error %.1f %%: %" PRIu32 " keys a row, which hold %.0f %% of the weight\n",
         1e3 * x->seconds[RUN_TOP_K], 100 * x->error[RUN_TOP_K].mean, keys, 100 * x->mass);
}

static bool check(const measure *m, const layer *l, const layer_result *x) {
  clear_progress(m);
  if (!(x->error[RUN_EXACT].p99 < EXACT_LIMIT)) {
    fprintf(stderr, "iceformer-demo: layer %" PRIu64 ": exact attention is off by %.1e\n", l->number,
            x->error[RUN_EXACT].p99);
    return false;
  }
  if (!(x->mass >= 0 && x->mass < 1.001)) {
    fprintf(stderr, "iceformer-demo: layer %" PRIu64 ": top-k kept a mass of %g\n", l->number, x->mass);
    return false;
  }
  if (!(x->error[RUN_FAST].mean < ACCELERATED_LIMIT && !((double)x->stats.measured_error >= ACCELERATED_LIMIT))) {
    fprintf(stderr, "iceformer-demo: layer %" PRIu64 ": accelerated attention is off by %.1e, measured %.1e\n", l->number,
            x->error[RUN_FAST].mean, (double)x->stats.measured_error);
    return false;
  }
  return true;
}

static bool run_layer(measure *m, model *of, layer *l, const options *o, picture *p, sums *all) {
  size_t rows = rows_used(l, o);
  layer_result x;
  m->keys = o->keys != 0 ? o->keys : ice_top_k_for(rows, 0.005f);
  if (!layer_load(of, l)) {
    fprintf(stderr, "iceformer-demo: %s\n", of->file.message);
    return false;
  }
  if (!measure_start(m, l, rows)) {
    fprintf(stderr, "iceformer-demo: out of memory for layer %" PRIu64 "\n", l->number);
    return false;
  }
  if (!measure_layer(m, l, &x)) {
    clear_progress(m);
    fprintf(stderr, "iceformer-demo: %s\n", m->message);
    return false;
  }
  if (!check(m, l, &x)) return false;
  if (!picture_layer(p, l, rows)) {
    fputs("iceformer-demo: out of memory for the drawing\n", stderr);
    return false;
  }
  print_layer(of, l, o, &x);
  if (x.stats.mode != ICE_MODE_EXACT) {
    printf("  verdict: ");
    print_verdict(x.seconds[RUN_EXACT], x.seconds[RUN_FAST], x.error[RUN_FAST].mean, (double)x.stats.measured_error,
                  x.error[RUN_FAST].p99, (double)o->tolerance);
  }
  if (m->top_k) print_top_k(&x, m->keys);
  fflush(stdout);
  add(all, &x);
  return true;
}

static bool run(model *m, const options *o, picture *p, sums *all) {
  measure x = {.threads = o->threads, .tolerance = o->tolerance, .top_k = o->top_k};
  bool ok = true;
  x.progress = clock_stderr_is_terminal() ? show_progress : no_progress;
  for (size_t i = 0; i < m->n_layers; i++) x.steps_all += measure_steps(&x, &m->layers[i]);
  for (size_t i = 0; ok && i < m->n_layers; i++) {
    ok = run_layer(&x, m, &m->layers[i], o, p, all);
    measure_finish(&x);
    layer_unload(&m->layers[i]);
  }
  return ok;
}

static void print_end(const sums *all, const options *o) {
  double n = (double)all->layers;
  printf("\nall %zu layers: exact %.1f ms, accelerated %.1f ms\n  verdict: ", all->layers, 1e3 * all->seconds[RUN_EXACT],
         1e3 * all->seconds[RUN_FAST]);
  if (all->exact_layers == all->layers) {
    printf("attended exactly\n");
  } else {
    double measured = all->measured_layers > 0 ? all->measured / (double)all->measured_layers : NAN;
    print_verdict(all->seconds[RUN_EXACT], all->seconds[RUN_FAST], all->error[RUN_FAST] / n, measured, all->worst_p99,
                  (double)o->tolerance);
  }
  printf("\nms: fastest of up to 3 calls, building the cells included. error: relative L2 error of a row, all heads side by\n"
         "side, against f64; mean over rows drawn from the whole prompt. measured: what the call reports itself, from rows\n"
         "that it attended both ways; root of mean squares. 99 of 100 rows: of the worst layer.\n");
  if (o->top_k) {
    printf("\ntop-k is the published method: a search finds the K keys that weigh most for each row, and all others count as\n"
           "nothing. It took %.1f ms, %.2f times the time of exact attention, and errs by %.0f %%: the keys that it keeps\n"
           "hold %.0f %% of the weight. It suits heads whose rows look at few keys, and prompts far longer than these.\n",
           1e3 * all->seconds[RUN_TOP_K], all->seconds[RUN_TOP_K] / all->seconds[RUN_EXACT],
           100 * all->error[RUN_TOP_K] / n, 100 * all->mass / n);
  }
}

/* Whether the first tokens that are asked for have queries. */
static bool has_queries(const model *m, const options *o) {
  for (size_t i = 0; i < m->n_layers; i++) {
    const layer *l = &m->layers[i];
    if (rows_used(l, o) > l->first) continue;
    fprintf(stderr, "iceformer-demo: layer%" PRIu64 ": none of the first %zu tokens has a query; %zu or more do\n", l->number,
            rows_used(l, o), l->first + 1);
    return false;
  }
  return true;
}

int main(int argc, char **argv) {
  options o;
  switch (options_parse(&o, argc, argv)) {
    case OPTIONS_HELP: return EXIT_SUCCESS;
    case OPTIONS_WRONG: return EXIT_USAGE;
    case OPTIONS_RUN: break;
  }
  if (o.isa != NULL && ice_isa_limit(o.isa) != ICE_OK) {
    fprintf(stderr, "iceformer-demo: --isa %s: no such instruction set on this machine\n", o.isa);
    return EXIT_USAGE;
  }
  const char *path = o.path != NULL ? o.path : DEMO_DATA;
  model m;
  picture p = {NULL, 0, 0};
  if (!model_open(&m, path)) {
    fprintf(stderr, "iceformer-demo: %s: %s\n", path, m.file.message);
    return EXIT_USAGE;
  }
  if (o.path == NULL && o.rope_base <= 0) o.rope_base = DEMO_ROPE_BASE;
  if (o.repeat == 0) o.repeat = o.path == NULL ? DEMO_REPEAT : 1;
  if (!model_repeat(&m, (size_t)o.repeat, o.rope_base)) {
    fprintf(stderr, "iceformer-demo: %s: %s\n", path, m.file.message);
    model_close(&m);
    return EXIT_USAGE;
  }
  if (!has_queries(&m, &o)) {
    model_close(&m);
    return EXIT_USAGE;
  }
  if (o.svg != NULL && !picture_open(&p, o.svg, m.n_layers)) {
    fprintf(stderr, "iceformer-demo: --svg %s: cannot be written\n", o.svg);
    model_close(&m);
    return EXIT_USAGE;
  }
  print_start(&m, &o);
  sums all;
  memset(&all, 0, sizeof all);
  bool ok = run(&m, &o, &p, &all);
  bool drawn = picture_close(&p);
  if (!drawn) fprintf(stderr, "iceformer-demo: --svg %s: cannot be written\n", o.svg);
  if (ok) print_end(&all, &o);
  if (ok && drawn && o.svg != NULL) printf("\n%s shows what one query attended to.\n", o.svg);
  model_close(&m);
  if (fflush(stdout) != 0) ok = false;
  return ok && drawn ? EXIT_SUCCESS : EXIT_FAILED;
}
