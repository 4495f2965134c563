/* The reader against damage: a small file cut at every length and with every byte changed must be read or refused,
 * never crash, and what is read must lie inside the file. Build with -fsanitize=address,undefined for the full effect.
 *   test_safetensors SCRATCH_FILE */
#include "safetensors.h"

#include <stdlib.h>
#include <string.h>

static const char header[] =
    "{\"__metadata__\":{\"n\":\"2\",\"note\":\"caf\\u00e9 \\ud83e\\uddca \\\"quoted\\\"\"},"
    "\"layer0.k\":{\"shape\":[1,2,2],\"dtype\":\"BF16\",\"data_offsets\":[0,8]},"
    " \"layer0.q\" : { \"dtype\" : \"F32\" , \"shape\" : [ 1, 2, 2 ], \"data_offsets\" : [ 8, 24 ] },"
    "\"layer0.v\":{\"dtype\":\"F16\",\"shape\":[1,2,2],\"data_offsets\":[24,32]},"
    "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[32,36]},"
    "\"ids\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[36,39]}}  ";

enum { HEADER = sizeof header - 1, DATA = 39, SIZE = 8 + HEADER + DATA };

static int failures;

#define CHECK(what) ((what) ? (void)0 : (void)(failures++, printf("line %d: %s\n", __LINE__, #what)))

static bool write_file(const char *path, const unsigned char *bytes, size_t n) {
  remove(path); /* rewriting a file in place makes some file systems flush it each time */
  FILE *f = fopen(path, "wb");
  bool ok = f != NULL && fwrite(bytes, 1, n, f) == n;
  return f != NULL && fclose(f) == 0 && ok;
}

/* Reads all there is; returns whether the file was accepted. */
static bool read_all(const char *path) {
  st_file f;
  if (!st_open(&f, path)) {
    CHECK(f.message[0] != 0);
    CHECK(strchr(f.message, '\n') == NULL);
    return false;
  }
  for (size_t i = 0; i < f.n_tensors; i++) {
    CHECK(f.tensors[i].end <= f.data_size);
    CHECK(st_find(&f, f.tensors[i].name) == &f.tensors[i]);
    free(st_read(&f, &f.tensors[i]));
  }
  st_close(&f);
  return true;
}

static void good_file(const char *path) {
  st_file f;
  CHECK(st_open(&f, path));
  CHECK(f.n_tensors == 5);
  const st_tensor *q = st_find(&f, "layer0.q"), *ids = st_find(&f, "ids"), *scalar = st_find(&f, "scalar");
  CHECK(q != NULL && q->dtype == ST_F32 && q->dims == 3 && q->shape[1] == 2 && q->begin == 8 && q->end == 24);
  CHECK(ids != NULL && ids->dtype == ST_OTHER);
  CHECK(scalar != NULL && scalar->dims == 0);
  CHECK(st_find(&f, "layer0.w") == NULL);
  const char *note = st_metadata(&f, "note");
  CHECK(note != NULL && strcmp(note, "caf\xC3\xA9 \xF0\x9F\xA7\x8A \"quoted\"") == 0);
  CHECK(st_metadata(&f, "absent") == NULL);
  unsigned char *bytes = q != NULL ? st_read(&f, q) : NULL;
  CHECK(bytes != NULL && bytes[0] == 8 && bytes[15] == 23);
  free(bytes);
  st_close(&f);
}

int main(int argc, char **argv) {
  unsigned char good[SIZE], bad[SIZE + 1];
  const char *path = argc > 1 ? argv[1] : "test.safetensors";
  memset(good, 0, 8);
  good[0] = HEADER % 256;
  good[1] = HEADER / 256;
  memcpy(good + 8, header, HEADER);
  for (int i = 0; i < DATA; i++) good[8 + HEADER + i] = (unsigned char)i;

  CHECK(write_file(path, good, SIZE));
  good_file(path);

  for (size_t n = 0; n < SIZE; n++) {
    CHECK(write_file(path, good, n));
    CHECK(!read_all(path));
  }
  memcpy(bad, good, SIZE);
  bad[SIZE] = 0;
  CHECK(write_file(path, bad, SIZE + 1));
  CHECK(!read_all(path));

  size_t accepted = 0, tried = 0;
  static const unsigned char values[] = {0, '"', '\\', '9', '{', '}', '[', ',', 0x7F, 0xFF};
  for (size_t i = 0; i < 8 + HEADER; i++) {
    for (size_t j = 0; j < sizeof values; j++) {
      if (good[i] == values[j]) continue;
      memcpy(bad, good, SIZE);
      bad[i] = values[j];
      CHECK(write_file(path, bad, SIZE));
      accepted += read_all(path); /* letters of a name or of the metadata may change */
      tried++;
    }
  }
  remove(path);
  printf("safetensors reader: %d cuts, %zu changed bytes (%zu of them harmless), %d failures\n", (int)SIZE, tried,
         accepted, failures);
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
