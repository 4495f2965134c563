// A FLASH_ATTN_EXT node with its shapes by name.
#pragma once

#include "ggml.h"

#include <cstdint>
#include <string>

namespace ice {

// q [dk, rows, heads, streams] f32, k [dk, keys, heads_k, streams_k], v [dv, keys, heads_v, streams_v], mask f16
// [keys, rows, mask_heads, mask_streams] or null, sinks f32 [heads] or null, dst [dv, heads, rows, streams] f32.
struct Op {
    const ggml_tensor * q, * k, * v, * mask, * sinks;
    ggml_tensor * dst;
    int64_t dk, dv, rows, keys, heads, streams;
    int64_t group_k, group_v; // query heads of a key head, of a value head
    float scale, max_bias, softcap;

    explicit Op(ggml_tensor * node);

    // What is claimed: everything the host's CPU kernel would take.
    static bool supported(const ggml_tensor * node);

    int64_t stream_k(int64_t s) const { return s / (streams / k->ne[3]); }
    int64_t stream_v(int64_t s) const { return s / (streams / v->ne[3]); }
    const char * q_at(int64_t s, int64_t h, int64_t r) const {
        return static_cast<const char *>(q->data) + s * q->nb[3] + h * q->nb[2] + r * q->nb[1];
    }
    const char * k_at(int64_t s, int64_t h, int64_t j) const { // of a query head
        return static_cast<const char *>(k->data) + stream_k(s) * k->nb[3] + h / group_k * k->nb[2] + j * k->nb[1];
    }
    const char * v_at(int64_t s, int64_t h, int64_t j) const {
        return static_cast<const char *>(v->data) + stream_v(s) * v->nb[3] + h / group_v * v->nb[2] + j * v->nb[1];
    }
    const ggml_fp16_t * mask_at(int64_t s, int64_t h, int64_t r) const {
        const char * p = static_cast<const char *>(mask->data) + s % mask->ne[3] * mask->nb[3] +
                         h % mask->ne[2] * mask->nb[2] + r * mask->nb[1];
        return reinterpret_cast<const ggml_fp16_t *>(p);
    }
    float * dst_at(int64_t s, int64_t h, int64_t r) const {
        return reinterpret_cast<float *>(static_cast<char *>(dst->data) + s * dst->nb[3] + r * dst->nb[2] + h * dst->nb[1]);
    }
    float slope(int64_t h) const; // ALiBi; 1 without
};

// The tensor that owns the memory of a view.
const ggml_tensor * root_of(const ggml_tensor * t);

// Whether a tensor is one of llama.cpp's key caches, "cache_<tag>k_l<layer>".
bool is_key_cache(const ggml_tensor * root);

// Its layer, -1 if it has none.
int layer_of(const ggml_tensor * root);

// Row of `n` elements of any type as f32.
void row_to_float(ggml_type type, const void * row, float * out, int64_t n);

} // namespace ice
