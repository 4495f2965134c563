#include "device.h"

#include "accelerate.h"
#include "backend.h"
#include "op.h"
#include "store.h"

#include "iceformer.h"

#include <cstdio>

namespace ice {

namespace {

const char * get_name(ggml_backend_dev_t) { return "iceformer"; }

const char * get_description(ggml_backend_dev_t) {
    static char text[64];
    snprintf(text, sizeof text, "iceformer %s, %s", ice_version_string(), ice_isa_name());
    return text;
}

void get_memory(ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = 0; }

enum ggml_backend_dev_type get_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; }

void get_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    *props = ggml_backend_dev_props{};
    props->name = get_name(dev);
    props->description = get_description(dev);
    props->type = get_type(dev);
}

ggml_backend_t init_backend(ggml_backend_dev_t dev, const char *) { return backend_new(dev); }

// The host's own memory: nothing is ever copied between backends.
ggml_backend_buffer_type_t get_buffer_type(ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); }

bool supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t type) { return ggml_backend_buft_is_host(type); }

bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_FLASH_ATTN_EXT: return Op::supported(op);
        case GGML_OP_SET_ROWS: return store_supported(op);
        case GGML_OP_NONE:
        case GGML_OP_RESHAPE:
        case GGML_OP_VIEW:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE: return false;
        default: break;
    }
    // Anything else whose result lies in a key cache writes there, a shift of the context for one.
    if (op->view_src && is_key_cache(root_of(op))) {
        mark_stale(root_of(op));
    }
    return false;
}

} // namespace

ggml_backend_dev_t device(ggml_backend_reg_t reg) {
    static ggml_backend_device dev = [] {
        ggml_backend_device d{};
        d.iface.get_name = get_name;
        d.iface.get_description = get_description;
        d.iface.get_memory = get_memory;
        d.iface.get_type = get_type;
        d.iface.get_props = get_props;
        d.iface.init_backend = init_backend;
        d.iface.get_buffer_type = get_buffer_type;
        d.iface.supports_op = supports_op;
        d.iface.supports_buft = supports_buft;
        return d;
    }();
    dev.reg = reg;
    return &dev;
}

} // namespace ice
