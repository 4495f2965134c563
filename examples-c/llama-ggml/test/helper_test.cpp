// iceformer-ggml.h in a graph of its own, against ggml_flash_attn_ext and the f64 reference.
//
//   helper_test <folder of the stock libraries>

#include "host.h"
#include "reference.h"

#include "../iceformer-ggml.h"
#include "ggml-alloc.h"
#include "ggml-cpp.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

namespace {

struct Case {
    ggml_type type;
    int64_t dim_k, dim_v, heads, heads_kv, rows, keys, streams;
    bool mask, causal;
    float softcap, tolerance;
    double most; // error allowed
};

std::mt19937 rng(3);

bool run(const Case & c) {
    ggml_context_ptr ctx(ggml_init({ggml_tensor_overhead() * 16 + 2 * ggml_graph_overhead(), nullptr, true}));
    ggml_tensor * q = ggml_permute(ctx.get(), ggml_new_tensor_4d(ctx.get(), GGML_TYPE_F32, c.dim_k, c.heads, c.rows, c.streams), 0, 2, 1, 3);
    ggml_tensor * k = ggml_new_tensor_4d(ctx.get(), c.type, c.dim_k, c.keys, c.heads_kv, c.streams);
    ggml_tensor * v = ggml_new_tensor_4d(ctx.get(), c.type, c.dim_v, c.keys, c.heads_kv, c.streams);
    ggml_tensor * m = ggml_new_tensor_4d(ctx.get(), GGML_TYPE_F16, c.keys, c.rows, 1, 1);
    const bool masked = c.mask || c.causal;
    ice_ggml_options options = {0, c.softcap, c.tolerance, c.causal};
    ggml_tensor * ours = ice_ggml_attention(ctx.get(), q, k, v, c.mask ? m : nullptr, &options);
    ggml_tensor * theirs = ggml_flash_attn_ext(ctx.get(), q, k, v, masked ? m : nullptr, 1.0f / std::sqrt(float(c.dim_k)), 0, c.softcap);
    if (!ours) {
        fprintf(stderr, "FAILED: no node\n");
        return false;
    }
    ggml_cgraph * graphs[2] = {ggml_new_graph(ctx.get()), ggml_new_graph(ctx.get())};
    ggml_build_forward_expand(graphs[0], ours);
    ggml_build_forward_expand(graphs[1], theirs);
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_cpu_buffer_type()));
    for (ggml_tensor * t : {q, k, v}) {
        std::normal_distribution<float> gauss(0, t == q ? 2.0f : 1.0f);
        const ggml_tensor * whole = t->view_src ? t->view_src : t;
        const int64_t n = ggml_nelements(whole);
        std::vector<float> x(static_cast<size_t>(n));
        // Keys and queries that drift, as in text: neighbours are alike.
        float base = 0;
        for (float & y : x) {
            base = 0.995f * base + 0.1f * gauss(rng);
            y = base + 0.3f * gauss(rng);
        }
        if (whole->type == GGML_TYPE_F32) {
            memcpy(whole->data, x.data(), x.size() * sizeof(float));
        } else {
            ggml_get_type_traits(whole->type)->from_float_ref(x.data(), whole->data, n);
        }
    }
    for (int64_t i = 0; i < c.rows; i++) {
        for (int64_t j = 0; j < c.keys; j++) {
            const bool hide = c.causal || !c.mask ? j > c.keys - c.rows + i : (i + 3 * j) % 4 == 0;
            static_cast<ggml_fp16_t *>(m->data)[i * c.keys + j] = ggml_fp32_to_fp16(hide ? -INFINITY : c.causal ? 0 : 0.01f * float(j % 50));
        }
    }
    static ggml_backend_t cpu = test::backend("CPU", 2);
    if (ggml_backend_graph_compute(cpu, graphs[0]) != GGML_STATUS_SUCCESS || ggml_backend_graph_compute(cpu, graphs[1]) != GGML_STATUS_SUCCESS) {
        fprintf(stderr, "FAILED: not computed\n");
        return false;
    }
    const float * a = static_cast<const float *>(ours->data), * b = static_cast<const float *>(theirs->data);
    const size_t n = static_cast<size_t>(ggml_nelements(ours));
    double host = 0, off = 0, norm = 0;
    std::vector<double> want;
    if (c.keys <= 1000) {
        want = test::reference(theirs);
    } else {
        want.assign(b, b + n);
    }
    for (size_t i = 0; i < n; i++) {
        off += std::pow(double(a[i]) - want[i], 2);
        host += std::pow(double(a[i]) - double(b[i]), 2);
        norm += want[i] * want[i];
    }
    off = std::sqrt(off / norm);
    host = std::sqrt(host / norm);
    const bool ok = off <= c.most && host <= std::max(c.most, 5e-3);
    printf("%s%s dim %d/%d heads %d/%d rows %d keys %d%s%s tolerance %g: error %.1e, from the host's %.1e\n", ok ? "" : "FAILED ", ggml_type_name(c.type),
           int(c.dim_k), int(c.dim_v), int(c.heads), int(c.heads_kv), int(c.rows), int(c.keys), c.mask ? " mask" : "", c.causal ? " causal" : "",
           double(c.tolerance), off, host);
    return ok;
}

} // namespace

int main(int argc, char ** argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s <folder of the stock libraries>\n", argv[0]);
        return 2;
    }
    test::load(argv[1], "-");
    const Case cases[] = {
        {GGML_TYPE_F32, 64, 64, 4, 4, 300, 300, 1, false, false, 0, 0, 1e-5},
        {GGML_TYPE_F16, 64, 64, 4, 2, 300, 500, 2, false, true, 0, 0, 1e-5},
        {GGML_TYPE_F16, 128, 80, 6, 2, 1, 700, 1, true, false, 30, 0, 1e-5},
        {GGML_TYPE_BF16, 40, 40, 3, 1, 17, 90, 3, true, false, 0, 0, 1e-5},
        // A tolerance is an aim: it is kept within one and a half times on keys that no model made.
        {GGML_TYPE_F16, 64, 64, 4, 2, 600, 2400, 1, false, true, 0, 0.05f, 0.075},
        {GGML_TYPE_F32, 32, 32, 2, 2, 2100, 2100, 1, false, false, 0, 0.05f, 0.05},
    };
    int failed = 0;
    for (const Case & c : cases) {
        failed += !run(c);
    }
    return failed ? 1 : 0;
}
