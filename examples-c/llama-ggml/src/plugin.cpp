// Entry points that ggml looks up after it has loaded the library.

#include "backend.h"
#include "device.h"
#include "ggml_symbols.h"
#include "settings.h"
#include "stats.h"

#include "ggml-backend-impl.h"
#include "iceformer.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// Why the host does not fit what this was compiled for, or null. The structs that host and backend share carry no size of
// their own, so that a plugin runs only with the release whose headers it has seen.
const char * mismatch(const void * caller) {
    static char text[512];
    if (const char * name = ice::find_ggml(caller)) {
        snprintf(text, sizeof text, "the program that loads it has no function %s: its llama.cpp is another than the headers (ggml %s) that "
                                    "this plugin was compiled against, or is linked into the program without being exported", name, ICE_GGML_VERSION);
        return text;
    }
    if (ice_abi_version() != ICE_ABI_VERSION) {
        return "libiceformer and its header differ";
    }
    if (strcmp(ggml_op_name(GGML_OP_FLASH_ATTN_EXT), "FLASH_ATTN_EXT") != 0 || strcmp(ggml_op_name(GGML_OP_SET_ROWS), "SET_ROWS") != 0 ||
        strcmp(ggml_type_name(GGML_TYPE_BF16), "bf16") != 0 || ggml_type_size(GGML_TYPE_Q8_0) != 34) {
        snprintf(text, sizeof text, "compiled for ggml %s, whose operations are numbered otherwise than those of the running %s: build it "
                                    "against the headers of this llama.cpp (`get.sh` beside its source finds them)", ICE_GGML_VERSION, ggml_version());
        return text;
    }
    const char * any = getenv("ICE_ANY_GGML");
    if (strcmp(ggml_version(), ICE_GGML_VERSION) != 0 && !(any && strcmp(any, "1") == 0)) {
        snprintf(text, sizeof text, "compiled for ggml %s, running in ggml %s: build it against the headers of this llama.cpp (`get.sh` "
                                    "beside its source finds them), or set ICE_ANY_GGML=1 if the two are known to be alike", ICE_GGML_VERSION, ggml_version());
        return text;
    }
    return nullptr;
}

const char * reg_name(ggml_backend_reg_t) { return "iceformer"; }
size_t device_count(ggml_backend_reg_t) { return 1; }
ggml_backend_dev_t get_device(ggml_backend_reg_t reg, size_t) { return ice::device(reg); }

void set_n_threads(ggml_backend_t backend, int n) { ice::backend_set_threads(backend, n); }

void read_stats(iceformer_ggml_stats * out, bool reset) { ice::all_stats(out, reset); }

void * proc_address(ggml_backend_reg_t, const char * name) {
    if (strcmp(name, "ggml_backend_set_n_threads") == 0) {
        return reinterpret_cast<void *>(set_n_threads);
    }
    if (strcmp(name, "iceformer_stats") == 0) {
        return reinterpret_cast<void *>(read_stats);
    }
    return nullptr;
}

} // namespace

extern "C" {

// 0: the loader leaves the library alone.
__attribute__((visibility("default"))) int ggml_backend_score(void) {
    if (const char * why = mismatch(__builtin_return_address(0))) {
        fprintf(stderr, "iceformer: not used: %s\n", why);
        return 0;
    }
    return 1;
}

__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void) {
    static ggml_backend_reg reg = [] {
        ggml_backend_reg r{};
        r.api_version = GGML_BACKEND_API_VERSION;
        r.iface.get_name = reg_name;
        r.iface.get_device_count = device_count;
        r.iface.get_device = get_device;
        r.iface.get_proc_address = proc_address;
        return r;
    }();
    if (mismatch(__builtin_return_address(0))) {
        return nullptr;
    }
    static bool said = false;
    if (!said) {
        said = true;
        fprintf(stderr, "iceformer %s: %s, %s; for ggml %s; needs flash attention on: -fa on, in Node flashAttention: true; -fa auto turns it off\n", ice_version_string(), ice_isa_name(),
                ice::Settings::from_environment().text().c_str(), ICE_GGML_VERSION);
    }
    return &reg;
}
}
