// The op by itself: shapes, types, masks and parameters, against the f64 reference and the host's own kernel.
//
//   ops_test <folder of the stock libraries> <plugin> [cases]

#include "host.h"
#include "reference.h"

#include "../src/iceformer-ggml-stats.h"

#include "ggml-alloc.h"
#include "ggml-cpp.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

namespace {

enum Masks { none, causal, behind, holes, random_hidden, finite, window, some_rows_blind, per_head, mask_kinds };
const char * const mask_names[] = {"none", "causal", "behind", "holes", "random", "finite", "window", "blind", "per-head"};

struct Case {
    ggml_type type_k, type_v;
    int64_t dk, dv, heads, heads_k, heads_v, rows, keys, streams, streams_kv;
    Masks mask;
    bool mask_per_stream;
    float max_bias, softcap;
    bool sinks;
    bool gaps;       // rows of keys lie apart, as in a cache of several heads
    bool poisoned;   // NaN in keys that nobody sees
    int threads;

    std::string text() const {
        char out[320];
        snprintf(out, sizeof out, "k %s v %s dk %d dv %d heads %d/%d/%d rows %d keys %d streams %d/%d mask %s%s bias %g cap %g%s%s%s threads %d",
                 ggml_type_name(type_k), ggml_type_name(type_v), int(dk), int(dv), int(heads), int(heads_k), int(heads_v), int(rows),
                 int(keys), int(streams), int(streams_kv), mask_names[mask], mask_per_stream ? " by stream" : "", double(max_bias),
                 double(softcap), sinks ? " sinks" : "", gaps ? " gaps" : "", poisoned ? " poisoned" : "", threads);
        return out;
    }
};

std::mt19937 rng(1);

float gauss() { return std::normal_distribution<float>()(rng); }
int64_t pick(std::initializer_list<int64_t> from) { return from.begin()[rng() % from.size()]; }

void fill(ggml_tensor * t, float size) {
    std::vector<float> row(static_cast<size_t>(t->ne[0]));
    for (int64_t i3 = 0; i3 < t->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < t->ne[2]; i2++) {
            for (int64_t i1 = 0; i1 < t->ne[1]; i1++) {
                for (float & x : row) {
                    x = size * gauss();
                }
                char * to = static_cast<char *>(t->data) + size_t(i1) * t->nb[1] + size_t(i2) * t->nb[2] + size_t(i3) * t->nb[3];
                if (t->type == GGML_TYPE_F32) {
                    memcpy(to, row.data(), row.size() * sizeof(float));
                } else {
                    ggml_get_type_traits(t->type)->from_float_ref(row.data(), to, t->ne[0]);
                }
            }
        }
    }
}

bool hidden(const Case & c, int64_t i, int64_t j, int64_t h) {
    switch (c.mask) {
        case causal: return j > i + c.keys - c.rows;
        case behind: return j > i + c.keys / 2 - c.rows;                      // a cache that is half empty
        case holes: return j % 7 == 3 || j < c.keys / 9;                      // the same for all rows
        case random_hidden: return (i * 7919 + j * 104729) % 5 < 2;
        case window: return j > i + c.keys - c.rows || j <= i + c.keys - c.rows - 37;
        case some_rows_blind: return i % 3 == 1 || j > i + c.keys - c.rows;
        case per_head: return (j + h) % 3 == 0;
        default: return false;
    }
}

// A view [dim, n, heads, streams] as a cache gives it: heads side by side in a row, when `gaps`.
ggml_tensor * cache(ggml_context * ctx, ggml_type type, int64_t dim, int64_t n, int64_t heads, int64_t streams, bool gaps) {
    if (!gaps) {
        return ggml_new_tensor_4d(ctx, type, dim, n, heads, streams);
    }
    ggml_tensor * all = ggml_new_tensor_3d(ctx, type, dim * heads, n + 3, streams);
    ggml_set_name(all, "cache_k_l0"); // as llama.cpp names the caches that sessions follow
    return ggml_view_4d(ctx, all, dim, n, heads, streams, all->nb[1], ggml_row_size(type, dim), all->nb[2], 0);
}

struct Errors {
    double reference = 0, host = 0;
};

int failures = 0;
double most_error = 1e-5; // f32 sums against f64: a few ulps of the largest value

void fail(const Case & c, const char * what, double x) {
    fprintf(stderr, "FAILED %s: %s %g\n", c.text().c_str(), what, x);
    failures++;
}

Errors run(const Case & c) {
    ggml_context_ptr ctx(ggml_init({ggml_tensor_overhead() * 32 + ggml_graph_overhead(), nullptr, true}));
    ggml_tensor * q0 = ggml_new_tensor_4d(ctx.get(), GGML_TYPE_F32, c.dk, c.heads, c.rows, c.streams);
    ggml_tensor * q = ggml_permute(ctx.get(), q0, 0, 2, 1, 3); // as llama.cpp has it: rows of all heads
    ggml_tensor * k = cache(ctx.get(), c.type_k, c.dk, c.keys, c.heads_k, c.streams_kv, c.gaps);
    ggml_tensor * v = cache(ctx.get(), c.type_v, c.dv, c.keys, c.heads_v, c.streams_kv, c.gaps);
    ggml_tensor * m = c.mask == none ? nullptr
                                     : ggml_new_tensor_4d(ctx.get(), GGML_TYPE_F16, c.keys, c.rows, c.mask == per_head ? c.heads : 1,
                                                          c.mask_per_stream ? c.streams : 1);
    ggml_tensor * sinks = c.sinks ? ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, c.heads) : nullptr;
    // The builder wants as many streams of keys as of queries; the op itself shares them.
    ggml_tensor * node = ggml_flash_attn_ext(ctx.get(), q, c.streams == c.streams_kv ? k : ggml_new_tensor_4d(ctx.get(), c.type_k, c.dk, c.keys, c.heads_k, c.streams),
                                             c.streams == c.streams_kv ? v : ggml_new_tensor_4d(ctx.get(), c.type_v, c.dv, c.keys, c.heads_v, c.streams),
                                             m, 1.0f / std::sqrt(float(c.dk)), c.max_bias, c.softcap);
    node->src[1] = k;
    node->src[2] = v;
    if (sinks) {
        ggml_flash_attn_ext_add_sinks(node, sinks);
    }
    ggml_cgraph * graph = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, node);
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_cpu_buffer_type()));
    memset(ggml_backend_buffer_get_base(buffer.get()), 0, ggml_backend_buffer_get_size(buffer.get()));
    fill(q, 1.5f);
    fill(k, 1.0f);
    fill(v, 1.0f);
    if (sinks) {
        fill(sinks, 2.0f);
    }
    for (int64_t s = 0; m && s < m->ne[3]; s++) {
        for (int64_t h = 0; h < m->ne[2]; h++) {
            for (int64_t i = 0; i < c.rows; i++) {
                ggml_fp16_t * row = reinterpret_cast<ggml_fp16_t *>(static_cast<char *>(m->data) + size_t(i) * m->nb[1] + size_t(h) * m->nb[2] + size_t(s) * m->nb[3]);
                for (int64_t j = 0; j < c.keys; j++) {
                    const bool hide = c.mask == finite ? (i + j + s) % 11 == 0 : hidden(c, i + s, j, h);
                    const float bias = c.mask == finite ? 0.5f * gauss() : c.max_bias > 0 ? -float(std::abs(i - j)) : 0.0f;
                    row[j] = ggml_fp32_to_fp16(hide ? -INFINITY : bias);
                }
            }
        }
    }
    if (c.poisoned) {
        for (int64_t s = 0; s < c.streams_kv; s++) {
            for (ggml_tensor * t : {k, v}) {
                char * row = static_cast<char *>(t->data) + size_t(c.keys - 1) * t->nb[1] + size_t(s) * t->nb[3];
                const float nan = NAN;
                if (t->type == GGML_TYPE_F32) {
                    memcpy(row, &nan, sizeof nan);
                } else {
                    const ggml_fp16_t x = ggml_fp32_to_fp16(nan);
                    memcpy(row, &x, sizeof x);
                }
            }
        }
    }
    const std::vector<double> want = test::reference(node);
    static ggml_backend_t cpu = test::backend("CPU", 2);
    ggml_backend_ptr plugin(test::backend("iceformer", c.threads));
    const float * out = static_cast<const float *>(node->data);
    std::vector<float> host;
    if (c.streams == c.streams_kv && c.heads_k == c.heads_v) {
        if (ggml_backend_graph_compute(cpu, graph) != GGML_STATUS_SUCCESS) {
            fail(c, "host", -1);
        }
        host.assign(out, out + want.size());
    }
    std::fill(static_cast<float *>(node->data), static_cast<float *>(node->data) + want.size(), NAN);
    if (!ggml_backend_supports_op(plugin.get(), node)) {
        fail(c, "not claimed", 0);
        return {};
    }
    if (ggml_backend_graph_compute(plugin.get(), graph) != GGML_STATUS_SUCCESS) {
        fail(c, "status", -1);
    }
    Errors e;
    double most = 1e-30;
    for (double x : want) {
        most = std::max(most, std::abs(x));
    }
    for (size_t i = 0; i < want.size(); i++) {
        const double d = std::abs(double(out[i]) - want[i]) / most;
        e.reference = std::max(e.reference, std::isfinite(d) ? d : 1e9);
        if (!host.empty() && std::isfinite(host[i])) {
            e.host = std::max(e.host, std::abs(double(host[i]) - double(out[i])) / most);
        }
    }
    // The host rounds sums, and queries of quantised caches.
    if (e.reference > most_error) {
        fail(c, "error against the reference", e.reference);
    }
    if (e.host > (ggml_is_quantized(c.type_k) ? 0.1 : 0.02)) {
        fail(c, "difference from the host", e.host);
    }
    return e;
}

Case draw() {
    const ggml_type types[] = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q5_1};
    Case c = {};
    c.type_k = types[rng() % 7];
    c.type_v = rng() % 4 ? c.type_k : types[rng() % 7];
    const bool quantised = ggml_is_quantized(c.type_k) || ggml_is_quantized(c.type_v);
    c.dk = quantised ? pick({32, 64, 128, 192}) : pick({8, 40, 64, 80, 128, 192});
    c.dv = rng() % 3 ? c.dk : quantised ? pick({32, 64, 128}) : pick({16, 40, 64, 128});
    c.heads_k = pick({1, 2, 3});
    c.heads = c.heads_k * pick({1, 2, 4, 12});
    c.heads_v = c.heads_k;
    c.rows = pick({1, 1, 2, 3, 4, 5, 9, 33, 70, 200});
    c.keys = c.rows + pick({0, 1, 5, 60, 300, 700});
    c.streams = c.streams_kv = pick({1, 1, 1, 2, 3});
    c.mask = Masks(rng() % mask_kinds);
    c.mask_per_stream = c.streams > 1 && rng() % 2;
    c.max_bias = c.mask != none && c.mask != per_head && rng() % 4 == 0 ? 8.0f : 0.0f;
    c.softcap = rng() % 4 == 0 ? 20.0f : 0.0f;
    c.sinks = rng() % 4 == 0;
    c.gaps = rng() % 2;
    c.threads = int(pick({1, 2, 3}));
    return c;
}

} // namespace

int main(int argc, char ** argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s <folder of the stock libraries> <plugin> [cases]\n", argv[0]);
        return 2;
    }
    setenv("ICE_MODE", "exact", 1);
    test::load(argv[1], argv[2]);
    const int cases = argc > 3 ? atoi(argv[3]) : 300;
    Errors worst;
    int done = 0;
    auto take = [&](const Case & c) {
        const Errors e = run(c);
        worst.reference = std::max(worst.reference, e.reference);
        worst.host = std::max(worst.host, e.host);
        done++;
    };
    // What drawing would hardly meet.
    Case c = {GGML_TYPE_F16, GGML_TYPE_F16, 64, 64, 4, 2, 2, 1, 9000, 1, 1, causal, false, 0, 0, false, true, false, 2};
    take(c); // few rows, cut along the keys
    c.sinks = true;
    c.rows = 3;
    c.threads = 3;
    take(c);
    c.type_k = c.type_v = GGML_TYPE_Q8_0;
    take(c);
    c = {GGML_TYPE_F32, GGML_TYPE_F16, 64, 64, 4, 2, 2, 6, 300, 1, 1, behind, false, 0, 0, false, true, true, 2};
    take(c); // NaN behind the mask
    c.rows = 2;
    take(c);
    c = {GGML_TYPE_F16, GGML_TYPE_F16, 64, 64, 12, 4, 2, 5, 40, 1, 1, causal, false, 0, 0, false, true, false, 2};
    take(c); // key heads and value heads in different numbers
    c.heads_k = c.heads_v = 2;
    c.streams = 4;
    c.streams_kv = 2;
    take(c); // streams that share keys
    c = {GGML_TYPE_BF16, GGML_TYPE_BF16, 576, 512, 16, 1, 1, 2, 400, 1, 1, causal, false, 0, 0, false, false, false, 2};
    take(c); // compressed keys
    c = {GGML_TYPE_F16, GGML_TYPE_F16, 128, 128, 32, 1, 1, 1, 600, 1, 1, holes, false, 0, 30, true, true, false, 2};
    take(c);
    for (int i = 0; i < cases; i++) {
        take(draw());
    }
    printf("exact: %d cases, largest error %.1e against the reference, %.1e from the host's kernel\n", done, worst.reference, worst.host);

    // The same by sessions, which keep keys and values in 16 bits: everything opened, so that little is left of the estimates.
    setenv("ICE_MODE", "accelerated", 1);
    setenv("ICE_TOLERANCE", "0.000001", 1);
    most_error = 3e-3;
    worst = Errors();
    done = 0;
    for (int i = 0; i < cases / 4; i++) {
        Case x = draw();
        x.gaps = true;
        x.keys = x.rows + pick({300, 513, 900});
        take(x);
    }
    auto read = reinterpret_cast<void (*)(iceformer_ggml_stats *, bool)>(
        ggml_backend_reg_get_proc_address(ggml_backend_reg_by_name("iceformer"), "iceformer_stats"));
    iceformer_ggml_stats stats = {};
    read(&stats, false);
    printf("sessions: %llu of %d cases, largest error %.1e against the reference; %d failed in all\n",
           (unsigned long long) stats.attend_accelerated, done, worst.reference, failures);
    if (stats.attend_accelerated * 4 < uint64_t(done)) {
        fprintf(stderr, "FAILED: hardly a session\n");
        return 1;
    }
    return failures ? 1 : 0;
}
