#include "safetensors.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* The format's own limit. */
#define MAX_HEADER 100000000u

static bool fail(st_file *file, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(file->message, sizeof file->message, format, args);
  va_end(args);
  /* Names come from the file: keep the message one line whatever they hold. */
  for (char *c = file->message; *c != 0; c++) {
    if ((unsigned char)*c < 0x20 || *c == 0x7F) *c = '?';
  }
  return false;
}

/* ---- The JSON that a header may hold: one object of objects of strings and lists of non-negative integers. ---- */

typedef struct parser {
  st_file *file;
  const char *at, *begin, *end;
} parser;

static bool bad(parser *p, const char *what) {
  return fail(p->file, "damaged header: %s at byte %llu", what, (unsigned long long)(8 + (p->at - p->begin)));
}

static void skip_space(parser *p) {
  while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r')) p->at++;
}

/* Takes `c` if it is next. */
static bool take(parser *p, char c) {
  skip_space(p);
  if (p->at == p->end || *p->at != c) return false;
  p->at++;
  return true;
}

static bool expect(parser *p, char c) {
  char what[] = "expected '?'";
  if (take(p, c)) return true;
  what[10] = c;
  return bad(p, what);
}

static bool parse_hex4(parser *p, uint32_t *out) {
  uint32_t x = 0;
  if (p->end - p->at < 4) return bad(p, "escape cut short");
  for (int i = 0; i < 4; i++) {
    char c = *p->at++;
    uint32_t digit;
    if (c >= '0' && c <= '9') digit = (uint32_t)(c - '0');
    else if (c >= 'a' && c <= 'f') digit = (uint32_t)(c - 'a') + 10;
    else if (c >= 'A' && c <= 'F') digit = (uint32_t)(c - 'A') + 10;
    else return bad(p, "wrong digit in an escape");
    x = x * 16 + digit;
  }
  *out = x;
  return true;
}

/* Writes a code point as UTF-8; at most 4 bytes, never more than the escape took in the source. */
static char *put_utf8(char *to, uint32_t c) {
  if (c < 0x80) {
    *to++ = (char)c;
  } else if (c < 0x800) {
    *to++ = (char)(0xC0 | (c >> 6));
    *to++ = (char)(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    *to++ = (char)(0xE0 | (c >> 12));
    *to++ = (char)(0x80 | ((c >> 6) & 0x3F));
    *to++ = (char)(0x80 | (c & 0x3F));
  } else {
    *to++ = (char)(0xF0 | (c >> 18));
    *to++ = (char)(0x80 | ((c >> 12) & 0x3F));
    *to++ = (char)(0x80 | ((c >> 6) & 0x3F));
    *to++ = (char)(0x80 | (c & 0x3F));
  }
  return to;
}

static bool parse_escape(parser *p, char **to) {
  static const char from_chars[] = "\"\\/bfnrt", to_chars[] = "\"\\/\b\f\n\r\t";
  if (p->at == p->end) return bad(p, "string without an end");
  char c = *p->at++;
  if (c == 'u') {
    uint32_t x, low;
    if (!parse_hex4(p, &x)) return false;
    if (x >= 0xD800 && x <= 0xDBFF) {
      if (p->end - p->at < 2 || p->at[0] != '\\' || p->at[1] != 'u') return bad(p, "half a surrogate pair");
      p->at += 2;
      if (!parse_hex4(p, &low)) return false;
      if (low < 0xDC00 || low > 0xDFFF) return bad(p, "half a surrogate pair");
      x = 0x10000 + ((x - 0xD800) << 10) + (low - 0xDC00);
    } else if (x >= 0xDC00 && x <= 0xDFFF) {
      return bad(p, "half a surrogate pair");
    }
    if (x == 0) return bad(p, "zero character in a string"); /* C strings cannot hold it */
    *to = put_utf8(*to, x);
    return true;
  }
  const char *found = c != 0 ? strchr(from_chars, c) : NULL;
  if (found == NULL) return bad(p, "unknown escape");
  *(*to)++ = to_chars[found - from_chars];
  return true;
}

/* A string in memory from malloc. */
static bool parse_string(parser *p, char **out) {
  if (!expect(p, '"')) return false;
  const char *close = p->at;
  while (close < p->end && *close != '"') close += *close == '\\' && p->end - close > 1 ? 2 : 1;
  if (close >= p->end) return bad(p, "string without an end");
  char *text = malloc((size_t)(close - p->at) + 1), *to = text;
  if (text == NULL) return fail(p->file, "out of memory");
  while (p->at < close) {
    unsigned char c = (unsigned char)*p->at++;
    if (c == '\\') {
      if (parse_escape(p, &to)) continue;
      free(text);
      return false;
    }
    if (c < 0x20) {
      free(text);
      return bad(p, "control character in a string");
    }
    *to++ = (char)c;
  }
  p->at++;
  *to = 0;
  *out = text;
  return true;
}

static bool parse_u64(parser *p, uint64_t *out) {
  uint64_t x = 0;
  skip_space(p);
  const char *first = p->at;
  for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++) {
    uint64_t digit = (uint64_t)(*p->at - '0');
    if (x > (UINT64_MAX - digit) / 10) return bad(p, "number too large");
    x = x * 10 + digit;
  }
  if (p->at == first || (*first == '0' && p->at - first > 1)) return bad(p, "expected a whole number");
  *out = x;
  return true;
}

static bool parse_list(parser *p, uint64_t *out, size_t max, size_t *len) {
  *len = 0;
  if (!expect(p, '[')) return false;
  if (take(p, ']')) return true;
  do {
    if (*len == max) return bad(p, "list too long");
    if (!parse_u64(p, &out[(*len)++])) return false;
  } while (take(p, ','));
  return expect(p, ']');
}

/* Room for one more element, doubling. */
static void *grow(st_file *file, void *array, size_t len, size_t element) {
  if (len != 0 && (len & (len - 1)) != 0) return array;
  void *larger = realloc(array, (len == 0 ? 1 : 2 * len) * element);
  if (larger == NULL) fail(file, "out of memory");
  return larger;
}

static bool parse_metadata(parser *p) {
  st_file *f = p->file;
  if (!expect(p, '{')) return false;
  if (take(p, '}')) return true;
  do {
    st_pair *pairs = grow(f, f->pairs, f->n_pairs, sizeof *pairs), *pair;
    if (pairs == NULL) return false;
    f->pairs = pairs;
    pair = &pairs[f->n_pairs++];
    pair->key = pair->value = NULL;
    if (!parse_string(p, &pair->key) || !expect(p, ':') || !parse_string(p, &pair->value)) return false;
  } while (take(p, ','));
  return expect(p, '}');
}

size_t st_dtype_size(st_dtype dtype) {
  switch (dtype) {
    case ST_F32: return 4;
    case ST_F16:
    case ST_BF16: return 2;
    case ST_I8: return 1;
    case ST_OTHER: break;
  }
  return 0;
}

static st_dtype dtype_named(const char *name) {
  if (strcmp(name, "F32") == 0) return ST_F32;
  if (strcmp(name, "F16") == 0) return ST_F16;
  if (strcmp(name, "BF16") == 0) return ST_BF16;
  if (strcmp(name, "I8") == 0) return ST_I8;
  return ST_OTHER;
}

/* Takes over `name`. */
static bool parse_tensor(parser *p, char *name) {
  st_file *f = p->file;
  st_tensor *tensors = grow(f, f->tensors, f->n_tensors, sizeof *tensors), *t;
  if (tensors == NULL) {
    free(name);
    return false;
  }
  f->tensors = tensors;
  t = &tensors[f->n_tensors++];
  memset(t, 0, sizeof *t);
  t->name = name;
  if (!expect(p, '{')) return false;
  bool has_dtype = false, has_shape = false, has_offsets = false;
  do {
    char *key = NULL;
    if (!parse_string(p, &key)) return false;
    bool is_dtype = strcmp(key, "dtype") == 0, is_shape = strcmp(key, "shape") == 0;
    bool is_offsets = strcmp(key, "data_offsets") == 0;
    free(key);
    if ((is_dtype && has_dtype) || (is_shape && has_shape) || (is_offsets && has_offsets)) {
      return bad(p, "field given twice");
    }
    if (!expect(p, ':')) return false;
    if (is_dtype) {
      char *dtype = NULL;
      if (!parse_string(p, &dtype)) return false;
      t->dtype = dtype_named(dtype);
      free(dtype);
      has_dtype = true;
    } else if (is_shape) {
      if (!parse_list(p, t->shape, ST_MAX_DIMS, &t->dims)) return false;
      has_shape = true;
    } else if (is_offsets) {
      uint64_t offsets[2];
      size_t len;
      if (!parse_list(p, offsets, 2, &len)) return false;
      if (len != 2) return bad(p, "data_offsets needs two numbers");
      t->begin = offsets[0];
      t->end = offsets[1];
      has_offsets = true;
    } else {
      return bad(p, "unknown field of a tensor");
    }
  } while (take(p, ','));
  if (!expect(p, '}')) return false;
  if (!has_dtype || !has_shape || !has_offsets) return bad(p, "tensor without dtype, shape or data_offsets");

  if (t->begin > t->end || t->end > f->data_size) {
    return fail(f, "truncated or damaged: tensor %.64s ends at byte %llu of %llu", t->name, (unsigned long long)t->end,
                (unsigned long long)f->data_size);
  }
  if (t->dtype == ST_OTHER) return true; /* never read, so its size does not matter */
  uint64_t bytes = st_dtype_size(t->dtype);
  bool fits = true;
  for (size_t i = 0; i < t->dims; i++) {
    if (t->shape[i] != 0 && bytes > UINT64_MAX / t->shape[i]) fits = false;
    bytes *= t->shape[i];
  }
  if (!fits || bytes != t->end - t->begin) {
    return fail(f, "damaged: shape and data_offsets of tensor %.64s disagree", t->name);
  }
  return true;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const st_tensor *)a)->name, ((const st_tensor *)b)->name);
}

static int by_begin(const void *a, const void *b) {
  const st_tensor *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return (x->end > y->end) - (x->end < y->end);
}

static bool parse_header(parser *p) {
  st_file *f = p->file;
  bool has_metadata = false;
  if (!expect(p, '{')) return false;
  if (!take(p, '}')) {
    do {
      char *name = NULL;
      if (!parse_string(p, &name)) return false;
      if (!expect(p, ':')) {
        free(name);
        return false;
      }
      if (strcmp(name, "__metadata__") != 0) {
        if (!parse_tensor(p, name)) return false;
        continue;
      }
      free(name);
      if (has_metadata) return bad(p, "second __metadata__");
      has_metadata = true;
      if (!parse_metadata(p)) return false;
    } while (take(p, ','));
    if (!expect(p, '}')) return false;
  }
  skip_space(p);
  if (p->at != p->end) return bad(p, "text after the header");

  /* The tensors must cover the data without gap or overlap: anything else was cut, padded or edited. */
  uint64_t at = 0;
  if (f->n_tensors > 0) qsort(f->tensors, f->n_tensors, sizeof *f->tensors, by_begin);
  for (size_t i = 0; i < f->n_tensors; i++) {
    if (f->tensors[i].begin != at) return fail(f, "damaged: gap or overlap before tensor %.64s", f->tensors[i].name);
    at = f->tensors[i].end;
  }
  if (at != f->data_size) {
    return fail(f, "damaged: %llu bytes after the last tensor", (unsigned long long)(f->data_size - at));
  }
  if (f->n_tensors > 0) qsort(f->tensors, f->n_tensors, sizeof *f->tensors, by_name);
  for (size_t i = 1; i < f->n_tensors; i++) {
    if (by_name(&f->tensors[i - 1], &f->tensors[i]) == 0) {
      return fail(f, "damaged: two tensors named %.64s", f->tensors[i].name);
    }
  }
  return true;
}

/* fseek takes a long, which is 32 bits on some systems: go there in steps. */
static bool seek_to(FILE *stream, uint64_t offset) {
  const uint64_t step = 1u << 30;
  if (fseek(stream, 0, SEEK_SET) != 0) return false;
  for (; offset > 0; offset -= offset < step ? offset : step) {
    if (fseek(stream, (long)(offset < step ? offset : step), SEEK_CUR) != 0) return false;
  }
  return true;
}

/* Sizes without ftell's limit of a long would need POSIX; a file beyond it is refused there instead. */
static bool stream_size(FILE *stream, uint64_t *size) {
  if (fseek(stream, 0, SEEK_END) != 0) return false;
  long at = ftell(stream);
  if (at < 0 || fseek(stream, 0, SEEK_SET) != 0) return false;
  *size = (uint64_t)at;
  return true;
}

static bool read_header(st_file *file) {
  unsigned char length[8];
  uint64_t size, header = 0;
  if (!stream_size(file->stream, &size)) return fail(file, "cannot be read: %s", strerror(errno));
  if (size < 8) return fail(file, "not a safetensors file: %llu bytes", (unsigned long long)size);
  if (fread(length, 1, 8, file->stream) != 8) return fail(file, "cannot be read: %s", strerror(errno));
  if (memcmp(length, "GGUF", 4) == 0) {
    return fail(file, "is a GGUF file: make -C examples-c demo MODEL=FILE captures its queries, keys and values first");
  }
  for (int i = 7; i >= 0; i--) header = header << 8 | length[i];
  if (header > MAX_HEADER) return fail(file, "not a safetensors file: the header length is out of range");
  if (header > size - 8) {
    return fail(file, "truncated or not a safetensors file: the header would end at byte %llu of %llu",
                (unsigned long long)(8 + header), (unsigned long long)size);
  }
  file->data_begin = 8 + header;
  file->data_size = size - file->data_begin;
  char *text = malloc((size_t)header + 1);
  if (text == NULL) return fail(file, "out of memory");
  bool ok = fread(text, 1, (size_t)header, file->stream) == header;
  if (!ok) {
    fail(file, "cannot be read");
  } else if (header == 0 || text[0] != '{') {
    ok = fail(file, "not a safetensors file: no JSON header");
  } else {
    parser p = {file, text, text, text + header};
    ok = parse_header(&p);
  }
  free(text);
  return ok;
}

bool st_open(st_file *file, const char *path) {
  memset(file, 0, sizeof *file);
  file->stream = fopen(path, "rb");
  if (file->stream == NULL) return fail(file, "%s", strerror(errno));
  if (read_header(file)) return true;
  st_close(file);
  return false;
}

void st_close(st_file *file) {
  for (size_t i = 0; i < file->n_tensors; i++) free(file->tensors[i].name);
  for (size_t i = 0; i < file->n_pairs; i++) {
    free(file->pairs[i].key);
    free(file->pairs[i].value);
  }
  free(file->tensors);
  free(file->pairs);
  if (file->stream != NULL) fclose(file->stream);
  file->tensors = NULL;
  file->pairs = NULL;
  file->stream = NULL;
  file->n_tensors = file->n_pairs = 0;
}

const st_tensor *st_find(const st_file *file, const char *name) {
  size_t low = 0, high = file->n_tensors;
  while (low < high) {
    size_t mid = low + (high - low) / 2;
    int order = strcmp(file->tensors[mid].name, name);
    if (order == 0) return &file->tensors[mid];
    if (order < 0) low = mid + 1;
    else high = mid;
  }
  return NULL;
}

const char *st_metadata(const st_file *file, const char *key) {
  for (size_t i = 0; i < file->n_pairs; i++) {
    if (strcmp(file->pairs[i].key, key) == 0) return file->pairs[i].value;
  }
  return NULL;
}

void *st_read(st_file *file, const st_tensor *tensor) {
  uint64_t bytes = tensor->end - tensor->begin;
  if (bytes > SIZE_MAX / 2) {
    fail(file, "tensor %.64s does not fit this machine's memory", tensor->name);
    return NULL;
  }
  void *data = malloc(bytes > 0 ? (size_t)bytes : 1);
  if (data == NULL) {
    fail(file, "out of memory for tensor %.64s (%llu bytes)", tensor->name, (unsigned long long)bytes);
    return NULL;
  }
  if (!seek_to(file->stream, file->data_begin + tensor->begin) ||
      fread(data, 1, (size_t)bytes, file->stream) != (size_t)bytes) {
    fail(file, "tensor %.64s cannot be read", tensor->name);
    free(data);
    return NULL;
  }
  return data;
}
