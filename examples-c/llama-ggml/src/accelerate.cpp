#include "accelerate.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>

namespace ice {

namespace {

constexpr int64_t PAYS_FROM = 2048; // keys from which on the library considers anything but exact attention
constexpr int64_t SEGMENT = 256;    // keys of the least that it can accelerate
constexpr int64_t FEW = 8;          // rows that are attended one by one when their masks differ
constexpr int REST = 256;

std::mutex stale_mutex;
std::unordered_map<const void *, uint64_t> stale_epochs;

uint64_t epoch_of(const ggml_tensor * root) {
    std::lock_guard<std::mutex> lock(stale_mutex);
    const auto it = stale_epochs.find(root->data);
    return it == stale_epochs.end() ? 0 : it->second;
}

const char * stream_base(const ggml_tensor * root, const char * row) {
    const char * begin = static_cast<const char *>(root->data);
    return begin + size_t(row - begin) / root->nb[2] * root->nb[2];
}

// A row's view in the order of the log: which tokens it sees.
void tokens_seen(const KeyLog & log, const Op & op, int64_t s, int64_t r, std::vector<uint8_t> & keep) {
    const ggml_fp16_t * m = op.mask ? op.mask_at(s, 0, r) : nullptr;
    keep.resize(size_t(log.size()));
    for (int64_t t = 0; t < log.size(); t++) {
        const int32_t cell = log.cell_of(t);
        keep[size_t(t)] = cell >= 0 && cell < op.keys && (!m || m[cell] != HIDDEN);
    }
}

// Number of ones in front, if nothing but zeros follows; else -1.
int64_t prefix_of(const std::vector<uint8_t> & keep) {
    const auto end = std::find(keep.begin(), keep.end(), uint8_t(0));
    return std::find(end, keep.end(), uint8_t(1)) == keep.end() ? int64_t(end - keep.begin()) : -1;
}

} // namespace

void mark_stale(const ggml_tensor * root) {
    if (root->data) {
        std::lock_guard<std::mutex> lock(stale_mutex);
        stale_epochs[root->data]++;
    }
}

bool Accelerate::wants(const Op & op, const MaskForm & form) const {
    const ggml_tensor * root = root_of(op.k);
    if (!settings_.accelerates() || !is_key_cache(root) || !settings_.layer_selected(layer_of(root))) {
        return false;
    }
    // Cells know no bias, heads share a session's mask, and a window's rows are few keys each.
    if (form.bias || op.max_bias > 0 || form.kind == MaskForm::window || (op.mask && op.mask->ne[2] > 1)) {
        return false;
    }
    if (op.group_k != op.group_v || op.k->nb[1] != root->nb[1] || op.scale <= 0 || op.softcap < 0 || op.rows == 0) {
        return false;
    }
    int64_t most = form.end - form.first;
    if (!form.rows.empty()) {
        most = 0;
        for (const RowView & v : form.rows) {
            most = std::max<int64_t>(most, v.count);
        }
    }
    return most >= (settings_.mode == Mode::accelerated ? SEGMENT : PAYS_FROM);
}

void Accelerate::wrote(const ggml_tensor * root, const char * row) {
    const char * base = stream_base(root, row);
    const auto it = entries_.find(base);
    if (it != entries_.end()) {
        it->second.log->wrote(int64_t(size_t(row - base) / root->nb[1]));
    }
}

bool Accelerate::jobs_of(const Op & op, int64_t s, const MaskForm & form, const KeyLog & log, std::vector<Job> & jobs) const {
    const int64_t len = log.size();
    auto add = [&](int64_t r0, int64_t nr) -> Job & {
        Job & job = jobs.emplace_back();
        ice_mask_init(&job.mask);
        job.r0 = r0;
        job.nr = nr;
        return job;
    };
    auto by_prefix = [&](int64_t r0, std::vector<uint64_t> && prefix) {
        Job & job = add(r0, int64_t(prefix.size()));
        job.prefix = std::move(prefix);
        job.mask.kind = ICE_MASK_PREFIX;
    };
    auto by_set = [&](int64_t r0, int64_t nr, std::vector<uint8_t> && keep) {
        const int64_t n = prefix_of(keep);
        if (n >= 0) {
            by_prefix(r0, std::vector<uint64_t>(size_t(nr), uint64_t(n)));
            return;
        }
        Job & job = add(r0, nr);
        job.keep = std::move(keep);
        job.mask.kind = ICE_MASK_KEYS;
    };
    if (log.in_order()) {
        switch (form.kind) {
            case MaskForm::all: by_prefix(0, std::vector<uint64_t>(size_t(op.rows), uint64_t(op.keys))); return true;
            case MaskForm::prefix: by_prefix(0, std::vector<uint64_t>(form.ends)); return true;
            case MaskForm::same_set: {
                std::vector<uint8_t> keep(form.seen);
                keep.resize(size_t(len), 0);
                by_set(0, op.rows, std::move(keep));
                return true;
            }
            default: break;
        }
        if (op.rows > FEW && len <= op.keys) {
            Job & job = add(0, op.rows);
            job.mask.kind = ICE_MASK_ADDITIVE;
            job.mask.bias.data = op.mask_at(s, 0, 0);
            job.mask.bias.dtype = ICE_F16;
            job.mask.bias.row_stride = op.mask->nb[1];
            return true;
        }
    }
    if (op.rows <= FEW) {
        for (int64_t r = 0; r < op.rows; r++) {
            std::vector<uint8_t> keep;
            tokens_seen(log, op, s, r, keep);
            by_set(r, 1, std::move(keep));
        }
        return true;
    }
    // Many rows and a log of another order: served if the rows see prefixes of it, as after a shift of the context.
    std::vector<uint64_t> prefix(size_t(op.rows));
    std::atomic<bool> all{true};
    team_.run(int(1 + op.rows * len / 65536), [&](int ith, int nth) {
        std::vector<uint8_t> keep;
        for (int64_t r = ith; r < op.rows && all; r += nth) {
            tokens_seen(log, op, s, r, keep);
            const int64_t n = prefix_of(keep);
            if (n < 0) {
                all = false;
            } else {
                prefix[size_t(r)] = uint64_t(n);
            }
        }
    });
    if (all) {
        by_prefix(0, std::move(prefix));
    }
    return all;
}

bool Accelerate::run(const Op & op, int64_t s, const MaskForm & form, LayerCounts & counts) {
    const ggml_tensor * root = root_of(op.k);
    const char * base = op.k_at(s, 0, 0);
    if (stream_base(root, base) != base) {
        return false;
    }
    Entry & entry = entries_[base];
    if (entry.rest > 0) {
        entry.rest--;
        return false;
    }
    if (!entry.log) {
        entry.log = std::make_unique<KeyLog>(team_, stats_);
        entry.epoch = epoch_of(root);
    }
    KeyLog & log = *entry.log;
    KeyLog::Shape shape = {};
    shape.dk = op.dk;
    shape.dv = op.dv;
    shape.heads = op.heads;
    shape.heads_kv = op.k->ne[2];
    shape.scale = op.scale;
    shape.softcap = op.softcap;
    shape.type_k = op.k->type;
    shape.type_v = op.v->type;
    shape.capacity = root->ne[1];
    shape.mode = settings_.mode == Mode::accelerated ? ICE_MODE_ACCELERATED : ICE_MODE_AUTO;
    shape.tolerance = settings_.tolerance;
    if (!log.open(shape)) {
        entry.rest = REST;
        return false;
    }
    if (const uint64_t epoch = epoch_of(root); epoch != entry.epoch) {
        entry.epoch = epoch;
        log.forget();
    }
    // A stream that comes a second time begins a new evaluation.
    if (!seen_.insert(base).second) {
        seen_.clear();
        seen_.insert(base);
        changed_ = false;
    }
    if (seen_.size() == 1) {
        first_ = root->data;
    }
    if (!log.sync(op, s, form, changed_ || root->data == first_, changed_)) {
        entry.rest = REST;
        return false;
    }
    std::vector<Job> jobs;
    {
        Timer timer(stats_.mask_seconds);
        if (!jobs_of(op, s, form, log, jobs)) {
            return false;
        }
    }
    size_t bytes = 0, align = 0;
    float * lse = op.sinks ? lse_.take_of<float>(size_t(op.heads * op.rows)) : nullptr;
    if (ice_session_work_required(log.session(), size_t(op.rows), uint32_t(team_.size()), &bytes, &align) != ICE_OK ||
        (op.sinks && !lse)) {
        return false;
    }
    void * work = work_.take(bytes);
    if (!work) {
        return false;
    }
    std::atomic<bool> ok{true};
    std::mutex sums;
    LayerCounts said;
    team_.run(team_.size(), [&](int ith, int nth) {
        for (Job & job : jobs) {
            ice_mask mask = job.mask;
            mask.prefix = job.prefix.data();
            mask.prefix_len = job.prefix.size();
            mask.keys = job.keep.data();
            mask.keys_len = job.keep.size();
            ice_tensor q = {};
            q.data = op.q_at(s, 0, job.r0);
            q.row_stride = op.q->nb[1];
            q.head_stride = op.q->nb[2];
            ice_tensor_mut out = {};
            out.data = op.dst_at(s, 0, job.r0);
            out.row_stride = op.dst->nb[2];
            out.head_stride = op.dst->nb[1];
            ice_attention_stats stats;
            ice_attention_stats_init(&stats);
            // Of a job of rows r0 .. r0 + nr: [head][row], behind those of the jobs before it.
            float * job_lse = lse ? lse + op.heads * job.r0 : nullptr;
            if (ice_session_attend(log.session(), &q, size_t(job.nr), &mask, &out, job_lse, work, bytes, uint32_t(ith),
                                   uint32_t(nth), &stats, nullptr) != ICE_OK) {
                ok = false;
                return;
            }
            std::lock_guard<std::mutex> lock(sums);
            said.scored += stats.pairs;
            said.dense += stats.pairs_dense;
            if (stats.rows_measured > 0 && std::isfinite(stats.measured_error)) {
                const double rows = double(stats.rows_measured), error = stats.measured_error;
                said.rows_measured += stats.rows_measured;
                said.squares += rows * error * error;
                said.p95 += rows * double(stats.measured_p95);
            }
        }
    });
    if (!ok) {
        return false;
    }
    stats_.pairs += said.scored;
    stats_.pairs_dense += said.dense;
    stats_.rows_measured += said.rows_measured;
    stats_.squares_measured += said.squares;
    counts.scored += said.scored;
    counts.dense += said.dense;
    counts.sparse += said.scored < said.dense ? said.dense : 0;
    counts.rows_measured += said.rows_measured;
    counts.squares += said.squares;
    counts.p95 += said.p95;
    for (const Job & job : jobs) {
        for (int64_t h = 0; lse && h < op.heads; h++) {
            const float sink = static_cast<const float *>(op.sinks->data)[h];
            for (int64_t r = 0; r < job.nr; r++) {
                const float x = lse[op.heads * job.r0 + h * job.nr + r];
                const float factor = std::isfinite(x) ? 1.0f / (1.0f + std::exp(sink - x)) : 1.0f;
                float * out = op.dst_at(s, h, job.r0 + r);
                for (int64_t d = 0; d < op.dv; d++) {
                    out[d] *= factor;
                }
            }
        }
    }
    return true;
}

} // namespace ice
