/* Attention of iceformer as a node of your own ggml graph (whisper.cpp, encoders, own engines): no plugin, the host's threads.
 *
 *   struct ggml_tensor * out = ice_ggml_attention(ctx, q, k, v, mask, &options);
 *
 * takes the place of ggml_flash_attn_ext(ctx, q, k, v, mask, scale, 0.0f, softcap): same shapes, same layouts.
 *   q     [dim_k, rows, heads, streams] f32
 *   k     [dim_k, keys, heads_kv, streams] f32, f16 or bf16
 *   v     [dim_v, keys, heads_kv, streams] f32, f16 or bf16, not transposed
 *   mask  [keys, rows, 1, streams or 1] f16 or f32, 0 or -inf or a finite bias; NULL: everything is seen
 *   out   [dim_v, heads, rows, streams] f32
 * Keys and values are read where they lie; nothing is kept from call to call. For a cache that grows token by token use a
 * session (ice_session_*), or the plugin. Link libiceformer. C and C++.
 *
 * ALiBi and sinks are not here: ggml_flash_attn_ext has them.
 */
#ifndef ICEFORMER_GGML_H
#define ICEFORMER_GGML_H

#include "ggml.h"
#include "iceformer.h"

#include <math.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Read when the graph is computed: must live until then. */
struct ice_ggml_options {
    float scale;     /* of the logits; 0 = 1/sqrt(dim_k) */
    float softcap;   /* 0 = off */
    float tolerance; /* 0 = exact, else as in ice_attention_options */
    bool causal;     /* row i sees the first keys - rows + i + 1 keys; only without a mask. Accelerated, which a mask is not */
};

/* One part of the node, called by ggml on each of its threads. */
static inline void ice_ggml_compute_(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct ice_ggml_options * o = (const struct ice_ggml_options *) userdata;
    const struct ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2], * m = dst->src[3];
    const int64_t rows = q->ne[1], keys = k->ne[1], group = q->ne[2] / k->ne[2];
    /* Cells belong to a key head: a part takes whole heads where they may pay, else blocks of rows of a query head. */
    const bool whole = o->tolerance > 0 && !m && rows >= 512 && keys >= 2048;
    const int64_t step = whole ? rows : 192, blocks = (rows + step - 1) / step, heads = whole ? k->ne[2] : q->ne[2];
    for (int64_t i = ith; i < heads * blocks * q->ne[3]; i += nth) {
        /* The last blocks of a causal head are the longest. */
        const int64_t block = blocks - 1 - i % blocks, h = i / blocks % heads * (whole ? group : 1), s = i / blocks / heads;
        const int64_t r = block * step, n = rows - r < step ? rows - r : step;
        const enum ggml_type types[2] = {k->type, v->type};
        ice_dtype dtypes[2];
        ice_attention_desc d;
        ice_error err;
        int j;
        for (j = 0; j < 2; j++) {
            dtypes[j] = types[j] == GGML_TYPE_F32 ? ICE_F32 : types[j] == GGML_TYPE_F16 ? ICE_F16 : ICE_BF16;
        }
        ice_attention_desc_init(&d);
        d.heads_q = (uint32_t) (whole ? group : 1);
        d.heads_kv = 1;
        d.dim_k = (uint32_t) k->ne[0];
        d.dim_v = (uint32_t) v->ne[0];
        d.rows_q = (size_t) n;
        d.rows_kv = (size_t) keys;
        d.q.data = (const char *) q->data + s * q->nb[3] + h * q->nb[2] + r * q->nb[1];
        d.q.row_stride = q->nb[1];
        d.q.head_stride = q->nb[2];
        d.k.data = (const char *) k->data + s * k->nb[3] + h / group * k->nb[2];
        d.k.dtype = dtypes[0];
        d.k.row_stride = k->nb[1];
        d.v.data = (const char *) v->data + s * v->nb[3] + h / group * v->nb[2];
        d.v.dtype = dtypes[1];
        d.v.row_stride = v->nb[1];
        d.out.data = (char *) dst->data + s * dst->nb[3] + r * dst->nb[2] + h * dst->nb[1];
        d.out.row_stride = dst->nb[2];
        d.out.head_stride = dst->nb[1];
        if (m) {
            d.mask.kind = ICE_MASK_ADDITIVE;
            d.mask.bias.data = (const char *) m->data + s % m->ne[3] * m->nb[3] + r * m->nb[1];
            d.mask.bias.dtype = m->type == GGML_TYPE_F16 ? ICE_F16 : ICE_F32;
            d.mask.bias.row_stride = m->nb[1];
        } else if (o->causal) {
            d.mask.kind = ICE_MASK_CAUSAL;
            d.mask.q_pos0 = (uint64_t) (keys - rows + r);
        }
        d.options.mode = o->tolerance > 0 ? ICE_MODE_AUTO : ICE_MODE_EXACT;
        d.options.tolerance = o->tolerance;
        d.options.scale = o->scale;
        d.options.softcap = o->softcap;
        ice_error_init(&err);
        if (ice_attention(&d, NULL, 0, NULL, &err) != ICE_OK) {
            int64_t row, head, x;
            fprintf(stderr, "ice_ggml_attention: %s\n", err.message);
            for (head = h; head < h + (whole ? group : 1); head++) {
                for (row = r; row < r + n; row++) {
                    float * to = (float *) ((char *) dst->data + s * dst->nb[3] + row * dst->nb[2] + head * dst->nb[1]);
                    for (x = 0; x < v->ne[0]; x++) {
                        to[x] = NAN; /* never a wrong number */
                    }
                }
            }
        }
    }
}

/* The node; NULL when shapes or types are others than above. */
static inline struct ggml_tensor * ice_ggml_attention(struct ggml_context * ctx, struct ggml_tensor * q, struct ggml_tensor * k,
                                                      struct ggml_tensor * v, struct ggml_tensor * mask,
                                                      struct ice_ggml_options * options) {
    struct ggml_tensor * args[4];
    const struct ggml_tensor * kv[2];
    int i;
    args[0] = q;
    args[1] = k;
    args[2] = v;
    args[3] = mask;
    kv[0] = k;
    kv[1] = v;
    for (i = 0; i < 2; i++) {
        if ((kv[i]->type != GGML_TYPE_F32 && kv[i]->type != GGML_TYPE_F16 && kv[i]->type != GGML_TYPE_BF16) ||
            kv[i]->nb[0] != ggml_type_size(kv[i]->type) || kv[i]->ne[1] != k->ne[1] || kv[i]->ne[2] != k->ne[2] || kv[i]->ne[3] != q->ne[3]) {
            return NULL;
        }
    }
    if (q->type != GGML_TYPE_F32 || q->nb[0] != sizeof(float) || q->ne[0] != k->ne[0] || q->ne[2] % k->ne[2] != 0) {
        return NULL;
    }
    if (mask && ((mask->type != GGML_TYPE_F16 && mask->type != GGML_TYPE_F32) || mask->nb[0] != ggml_type_size(mask->type) ||
                 mask->ne[0] != k->ne[1] || mask->ne[1] < q->ne[1] || mask->ne[2] != 1 || q->ne[3] % mask->ne[3] != 0 || options->causal)) {
        return NULL;
    }
    if (options->causal && q->ne[1] > k->ne[1]) {
        return NULL;
    }
    return ggml_custom_4d(ctx, GGML_TYPE_F32, v->ne[0], q->ne[2], q->ne[1], q->ne[3], args, mask ? 4 : 3, ice_ggml_compute_,
                          GGML_N_TASKS_MAX, options);
}

#ifdef __cplusplus
}
#endif

#endif
