/* Aligned memory from malloc, on every system: aligned_alloc is missing from Windows. */
#ifndef EXAMPLES_ALIGNED_H
#define EXAMPLES_ALIGNED_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* `size` bytes at a multiple of `align`, a power of two; NULL if there is no memory. */
static inline void *aligned_new(size_t size, size_t align) {
  if (align < sizeof(void *)) align = sizeof(void *);
  if (size > SIZE_MAX - align - sizeof(void *)) return NULL;
  unsigned char *block = malloc(size + align + sizeof(void *));
  if (block == NULL) return NULL;
  unsigned char *first = block + sizeof(void *);
  unsigned char *p = first + (align - (uintptr_t)first % align) % align;
  ((void **)(void *)p)[-1] = block; /* what free wants back */
  return p;
}

/* Gives it back. NULL does nothing. */
static inline void aligned_delete(void *p) {
  if (p != NULL) free(((void **)p)[-1]);
}

#endif
