#include "naive.h"

#include <cmath>

namespace ice {

void attend_row_naive(const Op & op, int64_t s, int64_t h, int64_t r, float * row, double * sum) {
    const float * q = reinterpret_cast<const float *>(op.q_at(s, h, r));
    const ggml_fp16_t * m = op.mask ? op.mask_at(s, h, r) : nullptr;
    const double slope = op.slope(h);
    double most = -INFINITY, weights = 0;
    for (int64_t d = 0; d < op.dv; d++) {
        sum[d] = 0;
    }
    for (int64_t j = 0; j < op.keys; j++) {
        const double bias = m ? slope * double(ggml_fp16_to_fp32(m[j])) : 0.0;
        if (bias == -INFINITY) {
            continue;
        }
        row_to_float(op.k->type, op.k_at(s, h, j), row, op.dk);
        double x = 0;
        for (int64_t d = 0; d < op.dk; d++) {
            x += double(q[d]) * double(row[d]);
        }
        x *= double(op.scale);
        if (op.softcap != 0) {
            x = double(op.softcap) * std::tanh(x / double(op.softcap));
        }
        x += bias;
        if (x > most) {
            const double down = std::exp(most - x);
            weights *= down;
            for (int64_t d = 0; d < op.dv; d++) {
                sum[d] *= down;
            }
            most = x;
        }
        const double w = std::exp(x - most);
        row_to_float(op.v->type, op.v_at(s, h, j), row, op.dv);
        weights += w;
        for (int64_t d = 0; d < op.dv; d++) {
            sum[d] += w * double(row[d]);
        }
    }
    if (op.sinks && weights > 0) {
        weights += std::exp(double(static_cast<const float *>(op.sinks->data)[h]) - most);
    }
    float * out = op.dst_at(s, h, r);
    for (int64_t d = 0; d < op.dv; d++) {
        out[d] = weights != 0 ? float(sum[d] / weights) : 0.0f;
    }
}

} // namespace ice
