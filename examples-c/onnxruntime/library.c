/* Entry point: registers domain "iceformer" with a session's options. The library starts no thread and keeps nothing but
 * the domain, which it gives back when it is unloaded. */
#include "op.h"
#include <ctype.h>
#include <iceformer.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

typedef struct kernel {
  const OrtApi *api;
  const operator_entry *entry;
  void *state;
} kernel;

static const operator_entry *entry_of(const OrtCustomOp *op) { return (const operator_entry *)(const void *)op; }

static OrtStatus *create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info, void **out) {
  const operator_entry *entry = entry_of(op);
  problem p = {0};
  kernel *k = malloc(sizeof *k);
  if (!k) fail(&p, ORT_CODE_RUNTIME_EXCEPTION, "no memory");
  void *state = k ? entry->form->create(api, info, &p) : NULL;
  if (!state) {
    free(k);
    return to_status(api, entry->form->name, &p);
  }
  *k = (kernel){api, entry, state};
  *out = k;
  return NULL;
}

static OrtStatus *compute(void *self, OrtKernelContext *context) {
  const kernel *k = self;
  problem p = {0};
  k->entry->form->compute(k->api, k->state, k->entry->type, context, &p);
  return to_status(k->api, k->entry->form->name, &p);
}

static void destroy(void *self) {
  kernel *k = self;
  if (k) free(k->state);
  free(k);
}

static int type_of(const operator_entry *entry, char letter) {
  letter = (char)toupper((unsigned char)letter);
  return letter == 'T' ? entry->type : letter == 'I' ? ORT_INT32 : ORT_UNDEFINED;
}

static const char *name(const OrtCustomOp *op) { return entry_of(op)->form->name; }
static const char *provider(const OrtCustomOp *op) { return (void)op, "CPUExecutionProvider"; }
static size_t inputs(const OrtCustomOp *op) { return strlen(entry_of(op)->form->inputs); }
static size_t outputs(const OrtCustomOp *op) { return strlen(entry_of(op)->form->outputs); }
static int input_type(const OrtCustomOp *op, size_t i) { return type_of(entry_of(op), entry_of(op)->form->inputs[i]); }
static int output_type(const OrtCustomOp *op, size_t i) { return type_of(entry_of(op), entry_of(op)->form->outputs[i]); }
static int presence(char letter) { return isupper((unsigned char)letter) ? ORT_REQUIRED : ORT_OPTIONAL; }
static int input_presence(const OrtCustomOp *op, size_t i) { return presence(entry_of(op)->form->inputs[i]); }
static int output_presence(const OrtCustomOp *op, size_t i) { return presence(entry_of(op)->form->outputs[i]); }
static int input_memory(const OrtCustomOp *op, size_t i) { return (void)op, (void)i, 0; }
static int one(const OrtCustomOp *op) { return (void)op, 1; }
static int forever(const OrtCustomOp *op) { return (void)op, INT32_MAX; }

#define ENTRY(operator, element)                                                                                        \
  {.base = {.version = ORT_VERSION_NEEDED, .GetName = name, .GetExecutionProviderType = provider,                      \
            .GetInputType = input_type, .GetInputTypeCount = inputs, .GetOutputType = output_type,                     \
            .GetOutputTypeCount = outputs, .KernelDestroy = destroy, .GetInputCharacteristic = input_presence,         \
            .GetOutputCharacteristic = output_presence, .GetInputMemoryType = input_memory,                            \
            .GetVariadicInputMinArity = one, .GetVariadicInputHomogeneity = one, .GetVariadicOutputMinArity = one,     \
            .GetVariadicOutputHomogeneity = one, .CreateKernelV2 = create, .KernelComputeV2 = compute,                 \
            .GetStartVersion = one, .GetEndVersion = forever},                                                         \
   .form = &operator, .type = element}

static const operator_entry entries[] = {
    ENTRY(attention_operator, ORT_FLOAT),
    ENTRY(attention_operator, ORT_FLOAT16),
    ENTRY(gqa_operator, ORT_FLOAT),
    ENTRY(gqa_operator, ORT_FLOAT16),
};

typedef OrtStatus *(*create_domain)(const char *, OrtDomain **);
typedef OrtStatus *(*add_op)(OrtDomain *, const OrtCustomOp *);
typedef OrtStatus *(*add_domain)(OrtSessionOptions *, OrtDomain *);
typedef void (*release_domain)(OrtDomain *);
typedef OrtStatus *(*create_status)(int, const char *);

/* A domain per registration: sessions may be made on several threads. Freed when the library is unloaded, in one list
 * whose head is swapped. */

typedef struct registered {
  struct registered *next;
  const OrtApi *api;
  OrtDomain *domain;
} registered;
static _Atomic(registered *) domains;

#if defined(__GNUC__)
__attribute__((destructor)) static void unload(void) {
  registered *r = atomic_exchange(&domains, NULL);
  while (r) {
    registered *next = r->next;
    ORT_CALL(r->api, ReleaseCustomOpDomain, release_domain)(r->domain);
    free(r);
    r = next;
  }
}
#endif

EXPORT OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base);

EXPORT OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) {
  const OrtApi *api = base->GetApi(ORT_VERSION_NEEDED);
  if (!api) {
    /* No table, no status: the first version's can make one. */
    char line[200];
    snprintf(line, sizeof line, "iceformer: needs ONNX Runtime 1.%d or later, this is %s", ORT_VERSION_NEEDED,
             base->GetVersionString());
    api = base->GetApi(1);
    return api ? ORT_CALL(api, CreateStatus, create_status)(ORT_CODE_NOT_IMPLEMENTED, line) : NULL;
  }
  if (ice_abi_version() != ICE_ABI_VERSION)
    return ORT_CALL(api, CreateStatus, create_status)(ORT_CODE_FAIL, "iceformer: built against another ABI version");
  registered *r = malloc(sizeof *r);
  if (!r) return ORT_CALL(api, CreateStatus, create_status)(ORT_CODE_RUNTIME_EXCEPTION, "iceformer: no memory");
  OrtStatus *status = ORT_CALL(api, CreateCustomOpDomain, create_domain)("iceformer", &r->domain);
  if (status) {
    free(r);
    return status;
  }
  r->api = api;
  for (size_t i = 0; i < sizeof entries / sizeof *entries && !status; i++)
    status = ORT_CALL(api, CustomOpDomain_Add, add_op)(r->domain, &entries[i].base);
  if (!status) status = ORT_CALL(api, AddCustomOpDomain, add_domain)(options, r->domain);
  if (status) {
    ORT_CALL(api, ReleaseCustomOpDomain, release_domain)(r->domain);
    free(r);
    return status;
  }
  r->next = atomic_load(&domains);
  while (!atomic_compare_exchange_weak(&domains, &r->next, r)) {
  }
  return NULL;
}
