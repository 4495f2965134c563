/* What one query attended to, as an SVG file: a panel a layer. */
#ifndef DEMO_PICTURE_H
#define DEMO_PICTURE_H

#include "layers.h"

#define PICTURE_PANELS 4

typedef struct picture {
  FILE *file; /* NULL: nothing is drawn */
  size_t panels, drawn;
} picture;

/* Room for so many layers; further ones are left out. False: the file cannot be written. */
bool picture_open(picture *p, const char *path, size_t layers);
/* The last of the first `rows` tokens, in the first query head. False: out of memory. */
bool picture_layer(picture *p, const layer *l, size_t rows);
/* False: not everything was written. */
bool picture_close(picture *p);

#endif
