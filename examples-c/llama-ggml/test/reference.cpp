#include "reference.h"

#include <cmath>
#include <cstring>

namespace test {

std::vector<float> row_of(const ggml_tensor * t, int64_t i1, int64_t i2, int64_t i3) {
    const char * p = static_cast<const char *>(t->data) + size_t(i1) * t->nb[1] + size_t(i2) * t->nb[2] + size_t(i3) * t->nb[3];
    std::vector<float> out(static_cast<size_t>(t->ne[0]));
    if (t->type == GGML_TYPE_F32) {
        memcpy(out.data(), p, out.size() * sizeof(float));
    } else {
        ggml_get_type_traits(t->type)->to_float(p, out.data(), t->ne[0]);
    }
    return out;
}

std::vector<double> reference(const ggml_tensor * node) {
    const ggml_tensor * q = node->src[0], * k = node->src[1], * v = node->src[2], * m = node->src[3], * sinks = node->src[4];
    float scale, max_bias, cap;
    memcpy(&scale, node->op_params, 4);
    memcpy(&max_bias, reinterpret_cast<const char *>(node->op_params) + 4, 4);
    memcpy(&cap, reinterpret_cast<const char *>(node->op_params) + 8, 4);
    const int64_t heads = q->ne[2], rows = q->ne[1], keys = k->ne[1], dv = v->ne[0];
    std::vector<double> out(static_cast<size_t>(dv * heads * rows * q->ne[3]), 0.0);
    for (int64_t s = 0; s < q->ne[3]; s++) {
        for (int64_t h = 0; h < heads; h++) {
            const int64_t ks = s * k->ne[3] / q->ne[3], kh = h * k->ne[2] / heads, vs = s * v->ne[3] / q->ne[3], vh = h * v->ne[2] / heads;
            double slope = 1;
            if (max_bias > 0) {
                const int n = 1 << int(std::floor(std::log2(double(heads))));
                slope = h < n ? std::pow(2.0, -double(max_bias) / n * double(h + 1))
                              : std::pow(2.0, -double(max_bias) / 2 / n * double(2 * (h - n) + 1));
            }
            std::vector<std::vector<float>> kr, vr;
            for (int64_t j = 0; j < keys; j++) {
                kr.push_back(row_of(k, j, kh, ks));
                vr.push_back(row_of(v, j, vh, vs));
            }
            for (int64_t i = 0; i < rows; i++) {
                const std::vector<float> qr = row_of(q, i, h, s);
                std::vector<double> logit(static_cast<size_t>(keys));
                double most = sinks ? double(static_cast<const float *>(sinks->data)[h]) : -INFINITY;
                bool any = false;
                for (int64_t j = 0; j < keys; j++) {
                    double bias = 0;
                    if (m) {
                        const char * p = static_cast<const char *>(m->data) + size_t(i) * m->nb[1] + size_t(h % m->ne[2]) * m->nb[2] + size_t(s % m->ne[3]) * m->nb[3];
                        bias = double(ggml_fp16_to_fp32(reinterpret_cast<const ggml_fp16_t *>(p)[j]));
                    }
                    double x = 0;
                    if (bias == -INFINITY) {
                        logit[size_t(j)] = -INFINITY;
                        continue;
                    }
                    any = true;
                    for (size_t d = 0; d < qr.size(); d++) {
                        x += double(qr[d]) * double(kr[size_t(j)][d]);
                    }
                    x *= double(scale);
                    if (cap != 0) {
                        x = double(cap) * std::tanh(x / double(cap));
                    }
                    logit[size_t(j)] = x + slope * bias;
                    most = std::max(most, logit[size_t(j)]);
                }
                if (!any) {
                    continue;
                }
                double sum = sinks ? std::exp(double(static_cast<const float *>(sinks->data)[h]) - most) : 0;
                double * o = &out[static_cast<size_t>(((s * rows + i) * heads + h) * dv)];
                for (int64_t j = 0; j < keys; j++) {
                    if (logit[size_t(j)] == -INFINITY) {
                        continue;
                    }
                    const double w = std::exp(logit[size_t(j)] - most);
                    sum += w;
                    for (int64_t d = 0; d < dv; d++) {
                        o[d] += w * double(vr[size_t(j)][size_t(d)]);
                    }
                }
                for (int64_t d = 0; d < dv; d++) {
                    o[d] /= sum;
                }
            }
        }
    }
    return out;
}

} // namespace test
