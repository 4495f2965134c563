// FLASH_ATTN_EXT as its definition says, in f64 on rows converted by the host: the naive twin of everything.
#pragma once

#include "ggml.h"

#include <vector>

namespace test {

// [streams][rows][heads][dv], the layout of the result.
std::vector<double> reference(const ggml_tensor * node);

// One row of any type, in f32.
std::vector<float> row_of(const ggml_tensor * t, int64_t i1, int64_t i2, int64_t i3);

} // namespace test
