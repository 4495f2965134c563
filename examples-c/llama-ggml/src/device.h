// The device: says which ops are claimed.
#pragma once

#include "ggml-backend-impl.h"

namespace ice {

ggml_backend_dev_t device(ggml_backend_reg_t reg);

} // namespace ice
