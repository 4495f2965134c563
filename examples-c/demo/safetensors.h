/* Reader for safetensors files: 8 bytes of header length (little endian), a JSON header, then the tensors' bytes.
 * Nothing in the file is trusted: every length and offset is checked against the size of the file before use. */
#ifndef DEMO_SAFETENSORS_H
#define DEMO_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define ST_MAX_DIMS 8
#define ST_MESSAGE 256

typedef enum st_dtype { ST_OTHER, ST_F32, ST_F16, ST_BF16, ST_I8 } st_dtype;

typedef struct st_tensor {
  char *name;
  st_dtype dtype;
  size_t dims;
  uint64_t shape[ST_MAX_DIMS];
  uint64_t begin, end; /* bytes, counted from the end of the header */
} st_tensor;

typedef struct st_pair {
  char *key, *value;
} st_pair;

typedef struct st_file {
  FILE *stream;
  uint64_t data_begin, data_size; /* bytes */
  st_tensor *tensors;
  size_t n_tensors;
  st_pair *pairs; /* "__metadata__" */
  size_t n_pairs;
  char message[ST_MESSAGE]; /* why the last call failed; one line */
} st_file;

/* Opens the file and checks its whole header. On failure `message` says why and nothing is left to close. */
bool st_open(st_file *file, const char *path);
void st_close(st_file *file);

/* NULL when there is none. */
const st_tensor *st_find(const st_file *file, const char *name);
const char *st_metadata(const st_file *file, const char *key);

/* Bytes of one element; 0 for ST_OTHER. */
size_t st_dtype_size(st_dtype dtype);

/* The tensor's bytes in memory from malloc, or NULL with `message` set. Numbers in the file are little endian. */
void *st_read(st_file *file, const st_tensor *tensor);

#endif
