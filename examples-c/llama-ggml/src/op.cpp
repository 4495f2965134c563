#include "op.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

namespace ice {

Op::Op(ggml_tensor * node)
    : q(node->src[0]), k(node->src[1]), v(node->src[2]), mask(node->src[3]), sinks(node->src[4]), dst(node) {
    dk = k->ne[0];
    dv = v->ne[0];
    rows = q->ne[1];
    keys = k->ne[1];
    heads = q->ne[2];
    streams = q->ne[3];
    group_k = heads / k->ne[2];
    group_v = heads / v->ne[2];
    float params[3];
    memcpy(params, node->op_params, sizeof params);
    scale = params[0];
    max_bias = params[1];
    softcap = params[2];
}

static bool readable(ggml_type type) {
    return type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float != nullptr;
}

bool Op::supported(const ggml_tensor * node) {
    const ggml_tensor * q = node->src[0], * k = node->src[1], * v = node->src[2], * mask = node->src[3], * sinks = node->src[4];
    if (!q || !k || !v || node->type != GGML_TYPE_F32 || q->type != GGML_TYPE_F32 || !readable(k->type) || !readable(v->type)) {
        return false;
    }
    // The host's kernel asserts these.
    const bool dense = q->nb[0] == sizeof(float) && k->nb[0] == ggml_type_size(k->type) &&
                       v->nb[0] == ggml_type_size(v->type) && node->nb[0] == sizeof(float);
    const bool fits = q->ne[0] == k->ne[0] && k->ne[1] == v->ne[1] && k->ne[2] > 0 && v->ne[2] > 0 && k->ne[3] > 0 &&
                      v->ne[3] > 0 && q->ne[2] % k->ne[2] == 0 && q->ne[2] % v->ne[2] == 0 && q->ne[3] % k->ne[3] == 0 &&
                      q->ne[3] % v->ne[3] == 0;
    if (mask && (mask->type != GGML_TYPE_F16 || mask->nb[0] != sizeof(ggml_fp16_t) || mask->ne[0] < k->ne[1] ||
                 mask->ne[1] < q->ne[1])) {
        return false;
    }
    return dense && fits && (!sinks || (sinks->type == GGML_TYPE_F32 && sinks->nb[0] == sizeof(float)));
}

float Op::slope(int64_t h) const {
    if (max_bias <= 0) {
        return 1;
    }
    const uint32_t n = 1u << uint32_t(std::floor(std::log2(double(heads))));
    const float m0 = std::pow(2.0f, -max_bias / float(n));
    const float m1 = std::pow(2.0f, -(max_bias / 2.0f) / float(n));
    return uint32_t(h) < n ? std::pow(m0, float(h + 1)) : std::pow(m1, float(2 * (h - n) + 1));
}

const ggml_tensor * root_of(const ggml_tensor * t) {
    while (t && t->view_src) {
        t = t->view_src;
    }
    return t;
}

bool is_key_cache(const ggml_tensor * root) {
    return root && strncmp(root->name, "cache_", 6) == 0 && strstr(root->name, "k_l") != nullptr;
}

int layer_of(const ggml_tensor * root) {
    const char * at = root ? strstr(root->name, "k_l") : nullptr;
    return at && at[3] >= '0' && at[3] <= '9' ? atoi(at + 3) : -1;
}

void row_to_float(ggml_type type, const void * row, float * out, int64_t n) {
    if (type == GGML_TYPE_F32) {
        memcpy(out, row, size_t(n) * sizeof(float));
    } else {
        ggml_get_type_traits(type)->to_float(row, out, n);
    }
}

} // namespace ice
