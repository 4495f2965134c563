// The host's own CPU backend: for comparisons (ICE_MODE=host), timed like the rest.
#pragma once

#include "ggml-backend.h"

namespace ice {

class Host {
public:
    ~Host();
    // Computes one node. False when the host's CPU backend cannot be reached.
    bool compute(ggml_tensor * node, int threads);

private:
    ggml_backend_t cpu_ = nullptr;
    void (*set_threads_)(ggml_backend_t, int) = nullptr;
    ggml_context * context_ = nullptr;
    ggml_cgraph * graph_ = nullptr;
};

} // namespace ice
