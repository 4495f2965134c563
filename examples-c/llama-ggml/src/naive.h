// The op as it is defined, one row at a time: for what the library refuses (NaN in the data, odd scales) and for tests.
#pragma once

#include "op.h"

namespace ice {

// Row r of head h of stream s into dst. `row` has room for dk + dv floats, `sum` for dv doubles.
void attend_row_naive(const Op & op, int64_t s, int64_t h, int64_t r, float * row, double * sum);

} // namespace ice
