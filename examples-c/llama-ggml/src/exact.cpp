#include "exact.h"

#include "naive.h"

#include "iceformer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

namespace ice {

namespace {

constexpr int64_t FEW = 4;        // rows up to which the library takes another way, which shares keys over a group
constexpr int64_t ROWS = 192;     // rows it takes together beyond
constexpr int64_t CHUNK = 512;    // keys converted at a time
constexpr int64_t SPLIT = 4096;   // keys of a part when few rows see many keys
constexpr int64_t MOST_GROUP = 8;

bool direct(ggml_type type) { return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16; }

ice_dtype dtype_of(ggml_type type) {
    return type == GGML_TYPE_F16 ? ICE_F16 : type == GGML_TYPE_BF16 ? ICE_BF16 : ICE_F32;
}

// Heads h0 .. h0 + nh, which share a key and a value head, rows r0 .. r0 + nr, keys k0 .. k1 of one stream.
struct Unit {
    int64_t s, h0, nh, r0, nr, k0, k1, part;
};

// Where a unit's rows go: strides in floats.
struct Out {
    float * data;
    int64_t head, row;
    float * lse; // [nh][nr]
};

void fill(ice_tensor & t, const void * data, ice_dtype type, size_t row, size_t head) {
    t.data = data;
    t.dtype = type;
    t.row_stride = row;
    t.head_stride = head;
}

// One call of the library for keys k0 .. k1 of a unit whose keys and values lie at `k` and `v`. The mask comes as the form
// says, or as a bias [nh or 1][nr][k1 - k0] in f32 when `bias` is given.
bool call(const Op & op, const MaskForm & form, const Unit & u, const ice_tensor & k, const ice_tensor & v, const float * bias,
          const Out & out, ExactScratch & scratch) {
    ice_attention_desc d;
    ice_attention_desc_init(&d);
    d.heads_q = uint32_t(u.nh);
    d.heads_kv = 1;
    d.dim_k = uint32_t(op.dk);
    d.dim_v = uint32_t(op.dv);
    d.rows_q = size_t(u.nr);
    int64_t k0 = u.k0;
    d.rows_kv = size_t(u.k1 - k0);
    d.q.data = op.q_at(u.s, u.h0, u.r0);
    d.q.row_stride = op.q->nb[1];
    d.q.head_stride = op.q->nb[2];
    d.k = k;
    d.v = v;
    d.out.data = out.data;
    d.out.row_stride = size_t(out.row) * sizeof(float);
    d.out.head_stride = size_t(out.head) * sizeof(float);
    d.lse = out.lse;
    d.options.mode = ICE_MODE_EXACT;
    d.options.scale = op.scale;
    d.options.softcap = op.softcap;
    d.options.flags = ICE_ATTENTION_TRUSTED_INPUT;
    if (bias) {
        d.mask.kind = ICE_MASK_ADDITIVE;
        const size_t row = d.rows_kv * sizeof(float);
        fill(d.mask.bias, bias, ICE_F32, row, size_t(u.nr) * row);
        d.mask.bias_heads = uint32_t(u.nh);
    } else if (form.kind == MaskForm::prefix || form.kind == MaskForm::window) {
        uint64_t * prefix = scratch.prefix.take_of<uint64_t>(size_t(u.nr));
        if (!prefix) {
            return false;
        }
        for (int64_t r = 0; r < u.nr; r++) {
            const int64_t end = int64_t(form.ends[size_t(u.r0 + r)]);
            prefix[r] = uint64_t(std::max<int64_t>(0, std::min(end, u.k1) - k0));
        }
        d.mask.kind = ICE_MASK_PREFIX;
        d.mask.prefix = prefix;
        d.mask.prefix_len = size_t(u.nr);
        d.options.window = form.kind == MaskForm::window ? uint64_t(form.width) : 0;
    } else if (form.kind == MaskForm::same_set) {
        d.mask.kind = ICE_MASK_KEYS;
        d.mask.keys = form.seen.data() + k0;
        d.mask.keys_len = d.rows_kv;
    } else if (form.kind == MaskForm::additive) {
        d.mask.kind = ICE_MASK_ADDITIVE;
        fill(d.mask.bias, op.mask_at(u.s, u.h0, u.r0) + k0, ICE_F16, op.mask->nb[1], 0);
    }
    size_t bytes = 0, align = 0;
    if (ice_attention_required(&d, &bytes, &align, nullptr) != ICE_OK) {
        return false;
    }
    void * work = scratch.work.take(bytes);
    return work && ice_attention(&d, work, bytes, nullptr, nullptr) == ICE_OK;
}

// Keys and values where they are.
bool in_place(const Op & op, const MaskForm & form, const Unit & u, const Out & out, ExactScratch & scratch) {
    ice_tensor k = {}, v = {};
    fill(k, op.k_at(u.s, u.h0, u.k0), dtype_of(op.k->type), op.k->nb[1], 0);
    fill(v, op.v_at(u.s, u.h0, u.k0), dtype_of(op.v->type), op.v->nb[1], 0);
    return call(op, form, u, k, v, nullptr, out, scratch);
}

// Chunk by chunk: rows converted to f32 where their type is not the library's, biases with their slopes, merged as they
// come.
bool in_chunks(const Op & op, const MaskForm & form, const Unit & u, const Out & out, ExactScratch & scratch) {
    const bool sloped = op.mask && op.max_bias > 0;
    // A window cannot be cut in chunks of prefixes: the mask itself serves.
    MaskForm cut;
    if (op.mask) {
        cut.kind = form.kind == MaskForm::prefix ? MaskForm::prefix : MaskForm::additive;
    }
    const MaskForm & used = cut.kind == MaskForm::prefix ? form : cut;
    const size_t rows = size_t(u.nh * u.nr);
    float * part = scratch.part.take_of<float>(rows * size_t(op.dv)), * part_lse = scratch.part_lse.take_of<float>(rows);
    float * all = scratch.all.take_of<float>(rows * size_t(op.dv)), * all_lse = scratch.all_lse.take_of<float>(rows);
    float * keys = scratch.keys.take_of<float>(size_t(CHUNK * op.dk)), * values = scratch.values.take_of<float>(size_t(CHUNK * op.dv));
    float * bias = sloped ? scratch.bias.take_of<float>(rows * size_t(CHUNK)) : nullptr;
    if (!part || !part_lse || !all || !all_lse || !keys || !values || (sloped && !bias)) {
        return false;
    }
    for (int64_t at = u.k0; at < u.k1; at += CHUNK) {
        Unit c = u;
        c.k0 = at;
        c.k1 = std::min(at + CHUNK, u.k1);
        const int64_t n = c.k1 - c.k0;
        ice_tensor k = {}, v = {};
        fill(k, op.k_at(u.s, u.h0, at), dtype_of(op.k->type), op.k->nb[1], 0);
        fill(v, op.v_at(u.s, u.h0, at), dtype_of(op.v->type), op.v->nb[1], 0);
        if (!direct(op.k->type)) {
            for (int64_t j = 0; j < n; j++) {
                row_to_float(op.k->type, op.k_at(u.s, u.h0, at + j), keys + j * op.dk, op.dk);
            }
            fill(k, keys, ICE_F32, 0, 0);
        }
        if (!direct(op.v->type)) {
            for (int64_t j = 0; j < n; j++) {
                row_to_float(op.v->type, op.v_at(u.s, u.h0, at + j), values + j * op.dv, op.dv);
            }
            fill(v, values, ICE_F32, 0, 0);
        }
        if (sloped) {
            for (int64_t h = 0; h < u.nh; h++) {
                const float slope = op.slope(u.h0 + h);
                for (int64_t r = 0; r < u.nr; r++) {
                    float * to = bias + (h * u.nr + r) * n;
                    ggml_fp16_to_fp32_row(op.mask_at(u.s, u.h0 + h, u.r0 + r) + at, to, n);
                    for (int64_t j = 0; j < n; j++) {
                        to[j] *= slope;
                    }
                }
            }
        }
        const bool first = at == u.k0;
        const Out to = {first ? all : part, u.nr * op.dv, op.dv, first ? all_lse : part_lse};
        if (!call(op, used, c, k, v, bias, to, scratch)) {
            return false;
        }
        if (!first && ice_attention_merge(all, all_lse, part, part_lse, rows, uint32_t(op.dv)) != ICE_OK) {
            return false;
        }
    }
    for (int64_t h = 0; h < u.nh; h++) {
        for (int64_t r = 0; r < u.nr; r++) {
            memcpy(out.data + h * out.head + r * out.row, all + (h * u.nr + r) * op.dv, size_t(op.dv) * sizeof(float));
            if (out.lse) {
                out.lse[h * u.nr + r] = all_lse[h * u.nr + r];
            }
        }
    }
    return true;
}

bool attend_unit(const Op & op, const MaskForm & form, const Unit & u, const Out & out, ExactScratch & scratch) {
    if (u.k0 >= u.k1) { // nothing is seen
        for (int64_t h = 0; h < u.nh; h++) {
            for (int64_t r = 0; r < u.nr; r++) {
                memset(out.data + h * out.head + r * out.row, 0, size_t(op.dv) * sizeof(float));
                if (out.lse) {
                    out.lse[h * u.nr + r] = -INFINITY;
                }
            }
        }
        return true;
    }
    const bool plain = direct(op.k->type) && direct(op.v->type) && !(op.mask && op.max_bias > 0);
    return op.scale != 0 && (plain ? in_place(op, form, u, out, scratch) : in_chunks(op, form, u, out, scratch));
}

// Adds the sink's weight to the sums; false when a row holds something that is not a number.
bool finish_row(const Op & op, int64_t s, int64_t h, int64_t r, float lse) {
    float * out = op.dst_at(s, h, r);
    float factor = 1;
    if (op.sinks && std::isfinite(lse)) {
        factor = 1.0f / (1.0f + std::exp(static_cast<const float *>(op.sinks->data)[h] - lse));
    }
    float check = 0;
    for (int64_t d = 0; d < op.dv; d++) {
        out[d] *= factor;
        check += out[d] * 0.0f;
    }
    return check == 0;
}

} // namespace

bool Exact::run(const Op & op, int64_t s, const MaskForm & shared) {
    // Heads with masks of their own: the library looks at each row's.
    MaskForm by_row;
    by_row.kind = MaskForm::additive;
    const bool own_masks = op.mask && op.mask->ne[2] > 1;
    const MaskForm & form = own_masks ? by_row : shared;

    const bool few = op.rows <= FEW;
    const bool grouped = few && op.group_k == op.group_v && !own_masks;
    const int64_t most = grouped ? std::min<int64_t>(op.group_k, MOST_GROUP) : 1;
    int64_t step = few ? op.rows : ROWS;
    while (!few && step > ROWS / 4 && op.heads * ((op.rows + step - 1) / step) < 2 * team_.size()) {
        step /= 2;
    }
    // Few rows over many keys are cut along the keys, by length alone: the same bits for any number of threads.
    int64_t lo = 0, hi = op.keys, parts = 1;
    if (few && form.kind != MaskForm::window) {
        form.range(0, op.rows, op.keys, lo, hi);
        parts = std::max<int64_t>(1, (hi - lo) / SPLIT);
    }
    std::vector<Unit> units;
    for (int64_t h = 0, n; h < op.heads; h += n) {
        n = grouped ? std::min(most, op.group_k - h % op.group_k) : 1;
        for (int64_t r = 0; r < op.rows; r += step) {
            Unit u = {s, h, n, r, std::min(step, op.rows - r), 0, op.keys, 0};
            form.range(u.r0, u.nr, op.keys, u.k0, u.k1);
            for (int64_t p = 0; p < parts; p++) {
                Unit piece = u;
                if (parts > 1) {
                    piece.part = p;
                    piece.k0 = lo + p * SPLIT;
                    piece.k1 = p + 1 == parts ? hi : piece.k0 + SPLIT;
                }
                units.push_back(piece);
            }
        }
    }
    // The last rows of a causal mask see the most: first.
    std::stable_sort(units.begin(), units.end(), [](const Unit & a, const Unit & b) { return a.r0 > b.r0; });

    const size_t rows = size_t(op.heads * op.rows), dv = size_t(op.dv); // [part][head][row]
    float * lse = partial_lse_.take_of<float>(rows * size_t(parts));
    float * partial = parts > 1 ? partial_.take_of<float>(rows * size_t(parts) * dv) : nullptr;
    if (!lse || (parts > 1 && !partial)) {
        return false;
    }
    scratch_.resize(size_t(team_.size()));
    std::atomic<size_t> next{0};
    std::atomic<uint64_t> naive{0};
    std::atomic<bool> memory{true};
    auto plainly = [&](int64_t h, int64_t r, ExactScratch & scratch) {
        float * row = scratch.row.take_of<float>(size_t(std::max(op.dk, op.dv)));
        double * sum = scratch.sum.take_of<double>(dv);
        if (row && sum) {
            naive++;
            attend_row_naive(op, s, h, r, row, sum);
        } else {
            memory = false;
        }
    };
    std::vector<std::atomic<bool>> failed(parts > 1 ? size_t(op.heads) : 0);
    team_.run(int(units.size()), [&](int ith, int) {
        ExactScratch & scratch = scratch_[size_t(ith)];
        for (size_t i; (i = next++) < units.size();) {
            const Unit & u = units[i];
            // Either one head, or all rows.
            const size_t at = size_t(u.part) * rows + size_t(u.h0 * op.rows + u.r0);
            if (parts > 1) {
                if (!attend_unit(op, form, u, {partial + at * dv, op.rows * op.dv, op.dv, lse + at}, scratch)) {
                    failed[size_t(u.h0)] = true;
                }
                continue;
            }
            const Out out = {op.dst_at(s, u.h0, u.r0), int64_t(op.dst->nb[1] / sizeof(float)),
                             int64_t(op.dst->nb[2] / sizeof(float)), lse + at};
            const bool ok = attend_unit(op, form, u, out, scratch);
            for (int64_t h = 0; h < u.nh; h++) {
                for (int64_t r = 0; r < u.nr; r++) {
                    if (!ok || !finish_row(op, s, u.h0 + h, u.r0 + r, lse[at + size_t(h * u.nr + r)])) {
                        plainly(u.h0 + h, u.r0 + r, scratch);
                    }
                }
            }
        }
    });
    for (int64_t h = 0; parts > 1 && h < op.heads; h++) {
        const size_t at = size_t(h * op.rows), n = size_t(op.rows);
        bool ok = !failed[size_t(grouped ? h - h % op.group_k % most : h)];
        for (size_t p = 1; ok && p < size_t(parts); p++) {
            const size_t from = p * rows + at;
            ok = ice_attention_merge(partial + at * dv, lse + at, partial + from * dv, lse + from, n, uint32_t(dv)) == ICE_OK;
        }
        for (int64_t r = 0; r < op.rows; r++) {
            memcpy(op.dst_at(s, h, r), partial + (at + size_t(r)) * dv, dv * sizeof(float));
            if (!ok || !finish_row(op, s, h, r, lse[at + size_t(r)])) {
                plainly(h, r, scratch_[0]);
            }
        }
    }
    stats_.attend_naive += naive;
    return memory;
}

} // namespace ice
