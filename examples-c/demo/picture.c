#include "picture.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 760
#define PANEL 170
#define LEFT 44
#define ACROSS (WIDTH - LEFT - 16)
#define TOP 34
#define HIGH 96
#define BARS 256
/* A key of this weight or more is heavy: it gets a dot of its own. */
#define HEAVY 0.01

bool picture_open(picture *p, const char *path, size_t layers) {
  p->panels = layers < PICTURE_PANELS ? layers : PICTURE_PANELS;
  p->drawn = 0;
  p->file = fopen(path, "w");
  if (p->file == NULL) return false;
  fprintf(p->file,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%zu\" font-family=\"sans-serif\" "
          "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
          WIDTH, p->panels * PANEL + 30);
  return true;
}

/* The root of a share grows where shares are small: what many light keys hold stays visible beside a sink. */
static double height(double share) { return HIGH * sqrt(share); }

static void words(picture *p, const layer *l, const double *weights, size_t seen, double y) {
  double heavy = 0;
  size_t count = 0;
  for (size_t j = 0; j < seen; j++) {
    if (weights[j] < HEAVY) continue;
    heavy += weights[j];
    count++;
  }
  fprintf(p->file, "<text x=\"%d\" y=\"%.0f\" font-size=\"13\">Layer %" PRIu64 ", a query at token %zu: %zu keys of ", LEFT,
          y + 16, l->number, seen, count);
  fprintf(p->file, "1 %% or more hold %.0f %% of its weight (the first key %.0f %%), %zu others share the rest</text>\n",
          100 * heavy, 100 * weights[0], seen - count);
}

static void axis(picture *p, size_t rows, double y) {
  static const double shares[] = {0.01, 0.1, 0.5, 1};
  for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
    double at = y + TOP + HIGH - height(shares[i]);
    fprintf(p->file, "<path d=\"M%d %.1fh%d\" stroke=\"#dddddd\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g %%</text>\n",
            LEFT, at, ACROSS, LEFT - 4, at + 4, 100 * shares[i]);
  }
  for (size_t i = 0; i <= 4; i++) {
    fprintf(p->file, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"%s\">%zu</text>\n", LEFT + ACROSS * (double)i / 4,
            y + TOP + HIGH + 14, i == 0 ? "start" : i == 4 ? "end" : "middle", rows * i / 4);
  }
}

bool picture_layer(picture *p, const layer *l, size_t rows) {
  if (p->file == NULL || p->drawn == p->panels) return true;
  ref_rows q = layer_head(l, PART_Q, 0), k = layer_head(l, PART_K, 0);
  double *weights = malloc(rows * sizeof *weights), bars[BARS] = {0}, y = (double)(p->drawn * PANEL);
  q.rows = rows - l->first;
  k.rows = rows;
  bool ok = weights != NULL && ref_weights(q, k, l->causal, l->first, q.rows - 1, weights);
  if (ok) {
    words(p, l, weights, rows, y);
    axis(p, rows, y);
    for (size_t j = 0; j < rows; j++) bars[j * BARS / rows] += weights[j];
    for (size_t i = 0; i < BARS; i++) {
      double h = height(bars[i] < 1 ? bars[i] : 1);
      fprintf(p->file, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#9db7d5\"/>\n",
              LEFT + ACROSS * (double)i / BARS, y + TOP + HIGH - h, ACROSS / (double)BARS, h);
    }
    for (size_t j = 0; j < rows; j++) {
      if (weights[j] < HEAVY) continue;
      fprintf(p->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"#d66027\"/>\n",
              LEFT + ACROSS * ((double)j + 0.5) / (double)rows, y + TOP + HIGH - height(weights[j]));
    }
    p->drawn++;
  }
  free(weights);
  return ok;
}

bool picture_close(picture *p) {
  if (p->file == NULL) return true;
  fprintf(p->file,
          "<text x=\"%d\" y=\"%zu\" fill=\"#555555\">Position in the prompt. Bars: weight of %d stretches of keys. Dots: "
          "heavy keys. Exact weights, first query head.</text>\n</svg>\n",
          LEFT, p->panels * PANEL + 16, BARS);
  bool ok = ferror(p->file) == 0;
  ok = fclose(p->file) == 0 && ok;
  p->file = NULL;
  return ok;
}
