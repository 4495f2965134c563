#include "backend.h"

#include "accelerate.h"
#include "exact.h"
#include "host.h"
#include "mask_form.h"
#include "op.h"
#include "report.h"
#include "scratch.h"
#include "settings.h"
#include "stats.h"
#include "store.h"
#include "team.h"

#include <cstdio>
#include <mutex>
#include <new>
#include <unordered_set>

namespace ice {

namespace {

struct Backend;

// For a program that asks what all contexts of the process did.
std::mutex all_mutex;
std::unordered_set<Backend *> all_backends;
Stats gone = {};

struct Backend {
    Settings settings = Settings::from_environment();
    Stats stats = {}, total = {}; // since a program read them; before that
    Team team;
    MaskForms forms{team};
    Exact exact{team, stats};
    Accelerate accelerate{settings, team, stats};
    Host host;
    Report report;
    Scratch twin; // outputs of exact attention, to compare with
    std::unordered_set<const void *> stored; // key caches written before any attention came
    bool attended = false, warned = false;

    Backend() {
        team.resize(settings.threads);
        std::lock_guard<std::mutex> lock(all_mutex);
        all_backends.insert(this);
    }
    ~Backend() {
        std::lock_guard<std::mutex> lock(all_mutex);
        all_backends.erase(this);
        if (settings.stats && total.attend_calls + stats.attend_calls > 0) {
            add(total, stats);
            report.print(stderr, total, settings);
        }
        stats.session_bytes = 0;
        add(gone, stats);
    }

    ggml_status attend(ggml_tensor * node);
    void compare(const Op & op, int64_t s, const MaskForm & form, double pairs);
    ggml_status store_rows(ggml_tensor * node);
};

// Query-key pairs that some row sees, all heads.
double pairs_of(const Op & op, const MaskForm & form) {
    double rows = form.rows.empty() ? double(op.rows) * double(op.keys) : 0;
    for (const RowView & v : form.rows) {
        rows += v.count;
    }
    return rows * double(op.heads);
}

// Computes a stream exactly as well, aside: what exact attention takes, and how far the outputs are apart.
void Backend::compare(const Op & op, int64_t s, const MaskForm & form, double pairs) {
    void * room = twin.take(ggml_nbytes(op.dst));
    if (!room) {
        return;
    }
    ggml_tensor dst = *op.dst;
    dst.data = room;
    Op other = op;
    other.dst = &dst;
    const uint64_t naive = stats.attend_naive;
    Comparison c = {pairs, now(), 0, 0};
    const bool ok = exact.run(other, s, form);
    c.seconds = now() - c.seconds;
    stats.attend_naive = naive;
    for (int64_t r = 0; ok && r < op.rows; r++) {
        for (int64_t h = 0; h < op.heads; h++) {
            const float * have = op.dst_at(s, h, r), * want = other.dst_at(s, h, r);
            for (int64_t d = 0; d < op.dv; d++) {
                c.error += double(have[d] - want[d]) * double(have[d] - want[d]);
                c.output += double(want[d]) * double(want[d]);
            }
        }
    }
    if (ok) {
        report.compared(Report::kind_of(op.rows), c);
        stats.checks++;
        stats.check_error += c.error;
        stats.check_output += c.output;
        stats.exact_seconds += c.seconds;
    }
}

ggml_status Backend::attend(ggml_tensor * node) {
    const Op op(node);
    if (ggml_nelements(node) == 0) {
        return GGML_STATUS_SUCCESS;
    }
    const double begin = now();
    double aside = 0;
    stats.attend_calls++;
    attended = true;
    bool done = false, accelerated = false;
    const ggml_tensor * root = root_of(op.k);
    const void * cache = is_key_cache(root) ? root->data : nullptr;
    LayerCounts & layer = report.of(cache ? layer_of(root) : -1);
    LayerCounts::Kind & kind = layer.kinds[Report::kind_of(op.rows)];
    if (settings.mode == Mode::host) {
        done = host.compute(node, team.size());
        stats.attend_host += done;
        if (!done && !warned) {
            warned = true;
            fprintf(stderr, "iceformer: ICE_MODE=host: the host's CPU backend cannot be reached; attending exactly\n");
        }
    }
    for (int64_t s = 0; !done && s < op.streams; s++) {
        const double look = now();
        const MaskForm & form = forms.of(op, s, 0, cache ? op.k_at(s, 0, 0) : nullptr);
        stats.mask_seconds += now() - look;
        const double pairs = pairs_of(op, form);
        kind.pairs += pairs;
        if (accelerate.wants(op, form) && accelerate.run(op, s, form, layer)) {
            accelerated = true;
            if (settings.stats && report.turn(Report::kind_of(op.rows))) {
                const double start = now();
                compare(op, s, form, pairs);
                aside += now() - start;
            }
            continue;
        }
        const double start = now();
        if (!exact.run(op, s, form)) {
            fprintf(stderr, "iceformer: out of memory\n");
            return GGML_STATUS_ALLOC_FAILED;
        }
        kind.pairs_exact += pairs;
        kind.seconds_exact += now() - start;
    }
    stats.attend_accelerated += accelerated;
    stats.attend_exact += !done && !accelerated;
    const double seconds = now() - begin - aside;
    kind.calls++;
    kind.seconds += seconds;
    stats.attend_seconds += seconds;
    if (op.rows == 1) {
        stats.decode_calls++;
        stats.decode_seconds += seconds;
    }
    return GGML_STATUS_SUCCESS;
}

ggml_status Backend::store_rows(ggml_tensor * node) {
    Timer timer(stats.store_seconds);
    stats.store_calls++;
    const ggml_tensor * root = root_of(node);
    if (!attended && !warned && !stored.insert(root->data).second) {
        warned = true;
        fprintf(stderr, "iceformer: keys are stored but no attention comes: flash attention is off. `-fa auto`, the default of "
                        "llama.cpp, switches it off when it is not computed by the layer's own device: use `-fa on` "
                        "(LLAMA_ARG_FLASH_ATTN=on, LLAMA_FLASH_ATTN_TYPE_ENABLED)\n");
    }
    if (!store(team, node, [&](const char * row) { accelerate.wrote(root, row); })) {
        fprintf(stderr, "iceformer: SET_ROWS beyond the cache\n");
        return GGML_STATUS_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}

Backend & self(ggml_backend_t backend) { return *static_cast<Backend *>(backend->context); }

const char * get_name(ggml_backend_t) { return "iceformer"; }

void free_backend(ggml_backend_t backend) {
    delete static_cast<Backend *>(backend->context);
    delete backend;
}

enum ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    try {
        for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
            ggml_tensor * node = ggml_graph_node(graph, i);
            if ((node->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) {
                continue;
            }
            ggml_status status = GGML_STATUS_SUCCESS;
            switch (node->op) {
                case GGML_OP_FLASH_ATTN_EXT: status = self(backend).attend(node); break;
                case GGML_OP_SET_ROWS: status = self(backend).store_rows(node); break;
                case GGML_OP_NONE:
                case GGML_OP_RESHAPE:
                case GGML_OP_VIEW:
                case GGML_OP_PERMUTE:
                case GGML_OP_TRANSPOSE: break;
                default:
                    fprintf(stderr, "iceformer: %s was not claimed\n", ggml_op_name(node->op));
                    status = GGML_STATUS_FAILED;
            }
            if (status != GGML_STATUS_SUCCESS) {
                return status;
            }
        }
        return GGML_STATUS_SUCCESS;
    } catch (const std::bad_alloc &) {
        fprintf(stderr, "iceformer: out of memory\n");
        return GGML_STATUS_ALLOC_FAILED;
    }
}

ggml_guid guid = {0x69, 0x63, 0x65, 0x66, 0x6f, 0x72, 0x6d, 0x65, 0x72, 0x2d, 0x67, 0x67, 0x6d, 0x6c, 0x00, 0x01};

} // namespace

ggml_backend_t backend_new(ggml_backend_dev_t device) {
    Backend * context = new (std::nothrow) Backend;
    ggml_backend * backend = context ? new (std::nothrow) ggml_backend{} : nullptr;
    if (!backend) {
        delete context;
        return nullptr;
    }
    backend->guid = &guid;
    backend->iface.get_name = get_name;
    backend->iface.free = free_backend;
    backend->iface.graph_compute = graph_compute;
    backend->device = device;
    backend->context = context;
    return backend;
}

void backend_set_threads(ggml_backend_t backend, int n) {
    Backend & b = self(backend);
    b.team.resize(b.settings.threads ? b.settings.threads : n);
}

void all_stats(Stats * out, bool reset) {
    std::lock_guard<std::mutex> lock(all_mutex);
    *out = gone;
    for (Backend * b : all_backends) {
        add(*out, b->stats);
        if (reset) {
            const uint64_t bytes = b->stats.session_bytes;
            b->stats.session_bytes = 0;
            add(b->total, b->stats);
            b->stats = Stats{};
            b->stats.session_bytes = bytes;
        }
    }
    if (reset) {
        gone = Stats{};
    }
}

} // namespace ice
