#include "table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void table_start(table *t, size_t columns) { *t = (table){.columns = columns}; }

void table_cell(table *t, const char *format, ...) {
  if (t->failed) return;
  if (t->len % 64 == 0) {
    void *larger = realloc(t->cells, (t->len + 64) * sizeof *t->cells);
    t->failed = larger == NULL;
    if (t->failed) return;
    t->cells = larger;
  }
  va_list args;
  va_start(args, format);
  vsnprintf(t->cells[t->len++], TABLE_CELL, format, args);
  va_end(args);
}

bool table_print(const table *t, const bool *bars, FILE *to) {
  if (t->failed) return false;
  for (size_t at = 0; at < t->len; at++) {
    size_t column = at % t->columns;
    int width = 0;
    for (size_t i = column; i < t->len; i += t->columns) {
      int n = (int)strlen(t->cells[i]);
      width = n > width ? n : width;
    }
    fprintf(to, "%s%*s%s", column == 0 ? "" : bars[column] ? " | " : "  ", width, t->cells[at],
            column + 1 == t->columns ? "\n" : "");
  }
  return true;
}

void table_free(table *t) { free(t->cells); }
