// The backend: one per context of the host, with everything that is remembered for it.
#pragma once

#include "stats.h"

#include "ggml-backend-impl.h"

namespace ice {

ggml_backend_t backend_new(ggml_backend_dev_t device);
void backend_set_threads(ggml_backend_t backend, int n);
// Of all backends of the process, those that are gone too. Not while one computes.
void all_stats(Stats * out, bool reset);

} // namespace ice
