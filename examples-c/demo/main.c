/* iceformer-demo: exact and top-k attention on queries, keys and values of trained models, one table. */
#include "../common/clock.h"
#include "layers.h"
#include "measure.h"
#include "options.h"
#include "table.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifndef DEMO_DATA
#define DEMO_DATA "data/heads.safetensors"
#endif

/* f32 sums over thousands of keys stay well below this; more means a wrong result. */
#define EXACT_LIMIT 1e-4
/* Far beyond the default tolerance: more means a wrong result, not an estimate. */
#define ACCELERATED_LIMIT 0.5

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

static void no_progress(const measure *m, uint64_t number, size_t head, const char *what) {
  (void)m, (void)number, (void)head, (void)what;
}

static void show_progress(const measure *m, uint64_t number, size_t head, const char *what) {
  fprintf(stderr, "\r\033[K%zu of %zu: layer %" PRIu64 " head %zu, %s", m->heads_done + 1, m->heads_all, number, head,
          what);
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

static uint32_t keys_kept(const options *o, size_t rows) {
  return o->top_k != 0 ? o->top_k : ice_top_k_for(rows, 0.005f);
}

static void print_layer(const model *m, const layer *l, const options *o) {
  size_t rows = rows_used(l, o), sample = rows < 256 ? rows : 256;
  const char *note = layer_note(m, l);
  printf("layer %" PRIu64 ": ", l->number);
  if (note != NULL) {
    print_plain(note);
    printf("; ");
  }
  printf("%zu query / %zu KV heads, %zu tokens, d = %zu, %s, ", l->heads_q, l->heads_kv, rows, l->dim_k,
         l->causal ? "causal" : "not causal");
  printf("top-k keeps %" PRIu32 " keys, errors on %zu rows (%.3g %%)\n", keys_kept(o, rows), sample,
         100.0 * (double)sample / (double)rows);
}

/* Columns: layer, head; then per mode time, (speed,) errors, (mass kept or error measured,) work memory. */
typedef struct report {
  table table;
  bool bars[32];
  size_t columns;
} report;

static void heading(report *r, bool bar, const char *text) {
  table_cell(&r->table, "%s", text);
  r->bars[r->columns++] = bar;
}

static void report_start(report *r) {
  memset(r, 0, sizeof *r);
  table_start(&r->table, 2 + 4 + 6 + 6);
  heading(r, false, "layer");
  heading(r, false, "head");
  for (int mode = 0; mode < RUN_MODES; mode++) {
    char name[TABLE_CELL];
    snprintf(name, sizeof name, "%s ms", run_mode_name[mode]);
    heading(r, true, name);
    if (mode != RUN_EXACT) heading(r, false, "speed");
    heading(r, false, "err mean");
    if (mode == RUN_ACCELERATED) heading(r, false, "measured");
    heading(r, false, "err p99");
    if (mode == RUN_TOP_K) heading(r, false, "mass");
    heading(r, false, "KiB");
  }
}

/* Heads too short to measure have none. */
static void table_measured(table *t, double measured) {
  if (isnan(measured)) {
    table_cell(t, "-");
  } else {
    table_cell(t, "%.1e", measured);
  }
}

/* `head` of "all" is the layer: times and memory of its heads, errors of their outputs side by side. */
static void report_row(report *r, uint64_t number, const char *head, const head_result *x) {
  table_cell(&r->table, "%" PRIu64, number);
  table_cell(&r->table, "%s", head);
  for (int mode = 0; mode < RUN_MODES; mode++) {
    table_cell(&r->table, "%.2f", 1e3 * x->seconds[mode]);
    if (mode != RUN_EXACT) table_cell(&r->table, "%.2fx", x->seconds[RUN_EXACT] / x->seconds[mode]);
    table_cell(&r->table, "%.1e", x->error[mode].mean);
    if (mode == RUN_ACCELERATED) table_measured(&r->table, x->measured);
    table_cell(&r->table, "%.1e", x->error[mode].p99);
    if (mode == RUN_TOP_K) table_cell(&r->table, "%.3f", x->mass);
    table_cell(&r->table, "%.0f", (double)x->work[mode] / 1024);
  }
}

static bool check(const measure *m, const layer *l, size_t head, const head_result *x) {
  clear_progress(m);
  if (!(x->error[RUN_EXACT].p99 < EXACT_LIMIT)) {
    fprintf(stderr, "iceformer-demo: layer %" PRIu64 " head %zu: exact attention is off by %.1e\n", l->number, head,
            x->error[RUN_EXACT].p99);
    return false;
  }
  if (!(x->mass >= 0 && x->mass < 1.001)) {
    fprintf(stderr, "iceformer-demo: layer %" PRIu64 " head %zu: top-k kept a mass of %g\n", l->number, head, x->mass);
    return false;
  }
  if (!(x->error[RUN_ACCELERATED].mean < ACCELERATED_LIMIT && !(x->measured >= ACCELERATED_LIMIT))) {
    fprintf(stderr, "iceformer-demo: layer %" PRIu64 " head %zu: accelerated attention is off by %.1e, measured %.1e\n",
            l->number, head, x->error[RUN_ACCELERATED].mean, x->measured);
    return false;
  }
  return true;
}

/* Every head of one layer; adds the layer's times to `total`. */
static bool run_layer(measure *m, const layer *l, report *r, head_result *total) {
  head_result all;
  memset(&all, 0, sizeof all);
  for (size_t head = 0; head < l->heads_q; head++) {
    head_result x;
    char name[TABLE_CELL];
    if (!measure_head(m, l, head, &x)) {
      clear_progress(m);
      fprintf(stderr, "iceformer-demo: %s\n", m->message);
      return false;
    }
    if (r->columns == 0) report_start(r);
    if (!check(m, l, head, &x)) return false;
    snprintf(name, sizeof name, "%zu", head);
    report_row(r, l->number, name, &x);
    all.mass += x.mass / (double)l->heads_q;
    all.measured += x.measured * x.measured / (double)l->heads_q;
    for (int mode = 0; mode < RUN_MODES; mode++) {
      all.seconds[mode] += x.seconds[mode];
      all.work[mode] = x.work[mode] > all.work[mode] ? x.work[mode] : all.work[mode];
    }
  }
  for (int mode = 0; mode < RUN_MODES; mode++) {
    all.error[mode] = metrics_spread(m->layer_errors[mode], m->n_sample, m->scratch);
    total->seconds[mode] += all.seconds[mode];
  }
  all.measured = sqrt(all.measured);
  report_row(r, l->number, "all", &all);
  return true;
}

static bool run(model *m, const options *o, report *r, head_result *total) {
  measure x = {.threads = o->threads, .tolerance = o->tolerance};
  bool ok = true;
  x.progress = clock_stderr_is_terminal() ? show_progress : no_progress;
  for (size_t i = 0; i < m->n_layers; i++) x.heads_all += m->layers[i].heads_q;
  for (size_t i = 0; ok && i < m->n_layers; i++) {
    layer *l = &m->layers[i];
    size_t rows = rows_used(l, o);
    x.top_k = keys_kept(o, rows);
    if (!layer_load(m, l)) {
      fprintf(stderr, "iceformer-demo: %s\n", m->file.message);
      ok = false;
    } else if (!measure_start(&x, l, rows)) {
      fprintf(stderr, "iceformer-demo: out of memory for layer %" PRIu64 "\n", l->number);
      ok = false;
    } else {
      ok = run_layer(&x, l, r, total);
    }
    measure_finish(&x);
    layer_unload(l);
  }
  return ok;
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
  if (!model_open(&m, path)) {
    fprintf(stderr, "iceformer-demo: %s: %s\n", path, m.file.message);
    return EXIT_USAGE;
  }
  for (size_t i = 0; i < m.n_layers; i++) print_layer(&m, &m.layers[i], &o);
  fflush(stdout);

  report r;
  head_result total;
  memset(&r, 0, sizeof r);
  memset(&total, 0, sizeof total);
  bool ok = run(&m, &o, &r, &total);
  if (ok) {
    putchar('\n');
    ok = table_print(&r.table, r.bars, stdout);
    if (!ok) fputs("iceformer-demo: out of memory for the table\n", stderr);
  }
  if (ok) {
    printf("\nms: median of up to 5 runs, building index or cells included. speed: exact ms / this ms.\n"
           "err: relative L2 error of an output row against f64; \"all\": of all heads' outputs side by side.\n"
           "mass: mean share of the softmax mass on the keys that top-k kept. measured: error that accelerated attention\n"
           "measured on rows that it also attended exactly (\"all\": root mean square; -: none).\n"
           "KiB: work memory of one call (\"all\": of the largest).\n");
    printf("total:");
    for (int mode = 0; mode < RUN_MODES; mode++) {
      printf(" %s %.1f ms,", run_mode_name[mode], 1e3 * total.seconds[mode]);
    }
    printf(" %" PRIu32 " thread%s; iceformer %s (ABI %" PRIu32 "), %s\n", o.threads, o.threads == 1 ? "" : "s",
           ice_version_string(), ice_abi_version(), ice_isa_name());
  }
  table_free(&r.table);
  model_close(&m);
  if (fflush(stdout) != 0) ok = false;
  return ok ? EXIT_SUCCESS : EXIT_FAILED;
}
