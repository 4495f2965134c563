#include "store.h"

#include "op.h"

#include <atomic>
#include <cstring>
#include <vector>

namespace ice {

bool store_supported(const ggml_tensor * node) {
    const ggml_tensor * from = node->src[0], * at = node->src[1];
    const bool types = from && at && from->type == GGML_TYPE_F32 && (at->type == GGML_TYPE_I64 || at->type == GGML_TYPE_I32) &&
                       (node->type == GGML_TYPE_F32 || ggml_get_type_traits(node->type)->from_float_ref);
    return types && from->nb[0] == sizeof(float) && is_key_cache(root_of(node));
}

bool store(Team & team, const ggml_tensor * node, const std::function<void(const char *)> & wrote) {
    const ggml_tensor * from = node->src[0], * index = node->src[1];
    const int64_t cols = from->ne[0], rows = from->ne[1], total = rows * from->ne[2] * from->ne[3];
    const ggml_type type = node->type;
    std::vector<char *> to(size_t(total), nullptr);
    for (int64_t i = 0; i < total; i++) {
        const int64_t r = i % rows, i2 = i / rows % from->ne[2], i3 = i / rows / from->ne[2];
        const char * p = static_cast<const char *>(index->data) + size_t(r) * index->nb[0] +
                         size_t(i2 % index->ne[1]) * index->nb[1] + size_t(i3 % index->ne[2]) * index->nb[2];
        int64_t row;
        if (index->type == GGML_TYPE_I64) {
            memcpy(&row, p, sizeof row);
        } else {
            int32_t x;
            memcpy(&x, p, sizeof x);
            row = x;
        }
        if (row < 0 || row >= node->ne[1]) {
            return false; // the host aborts here
        }
        to[size_t(i)] = static_cast<char *>(node->data) + size_t(row) * node->nb[1] + size_t(i2) * node->nb[2] + size_t(i3) * node->nb[3];
        wrote(to[size_t(i)]);
    }
    team.run(int(1 + total * cols / 65536), [&](int ith, int nth) {
        for (int64_t i = total * ith / nth; i < total * (ith + 1) / nth; i++) {
            const int64_t r = i % rows, i2 = i / rows % from->ne[2], i3 = i / rows / from->ne[2];
            const float * x = reinterpret_cast<const float *>(static_cast<const char *>(from->data) + size_t(r) * from->nb[1] +
                                                              size_t(i2) * from->nb[2] + size_t(i3) * from->nb[3]);
            if (type == GGML_TYPE_F32) {
                memcpy(to[size_t(i)], x, size_t(cols) * sizeof(float));
            } else {
                ggml_get_type_traits(type)->from_float_ref(x, to[size_t(i)], cols);
            }
        }
    });
    return true;
}

} // namespace ice
