/* A table of text cells whose columns are as wide as their widest cell. */
#ifndef DEMO_TABLE_H
#define DEMO_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define TABLE_CELL 24

typedef struct table {
  char (*cells)[TABLE_CELL];
  size_t columns, len; /* cells, filled row by row; the first row is the heading */
  bool failed;         /* memory ran short */
} table;

void table_start(table *t, size_t columns);
void table_cell(table *t, const char *format, ...);
/* Columns flagged in `bars` have a bar before them. False when memory ran short while it was filled. */
bool table_print(const table *t, const bool *bars, FILE *to);
void table_free(table *t);

#endif
