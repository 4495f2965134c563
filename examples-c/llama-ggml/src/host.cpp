#include "host.h"

#include "ggml.h"

namespace ice {

Host::~Host() {
    if (context_) {
        ggml_free(context_);
    }
    if (cpu_) {
        ggml_backend_free(cpu_);
    }
}

bool Host::compute(ggml_tensor * node, int threads) {
    if (!cpu_) {
        ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        cpu_ = dev ? ggml_backend_dev_init(dev, nullptr) : nullptr;
        if (!cpu_) {
            return false;
        }
        set_threads_ = reinterpret_cast<decltype(set_threads_)>(
            ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(dev), "ggml_backend_set_n_threads"));
        ggml_init_params params = {ggml_graph_overhead_custom(8, false) + 1024, nullptr, true};
        context_ = ggml_init(params);
        graph_ = context_ ? ggml_new_graph_custom(context_, 8, false) : nullptr;
    }
    if (!graph_) {
        return false;
    }
    if (set_threads_) {
        set_threads_(cpu_, threads);
    }
    ggml_graph_clear(graph_);
    ggml_graph_add_node(graph_, node);
    return ggml_backend_graph_compute(cpu_, graph_) == GGML_STATUS_SUCCESS;
}

} // namespace ice
