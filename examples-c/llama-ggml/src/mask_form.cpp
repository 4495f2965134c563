#include "mask_form.h"

#include <algorithm>
#include <cstring>

namespace ice {

RowView look_at_row(const ggml_fp16_t * m, int64_t keys) {
    RowView v;
    int64_t hidden = 0, zero = 0;
    for (int64_t j = 0; j < keys;) {
        // Counted in the width of the entries, so that the loop becomes vectors of them.
        const int64_t end = std::min<int64_t>(keys, j + UINT16_MAX);
        uint16_t h = 0, z = 0;
        for (; j < end; j++) {
            h = uint16_t(h + (m[j] == HIDDEN));
            z = uint16_t(z + ((m[j] & 0x7FFF) == 0));
        }
        hidden += h;
        zero += z;
    }
    v.count = int32_t(keys - hidden);
    v.bias = zero + hidden != keys;
    if (v.count == 0) {
        return v;
    }
    int64_t first = 0, end = keys;
    while (m[first] == HIDDEN) {
        first++;
    }
    while (m[end - 1] == HIDDEN) {
        end--;
    }
    v.first = int32_t(first);
    v.end = int32_t(end);
    return v;
}

void settle(MaskForm & form, int64_t keys) {
    form.bias = false;
    form.first = keys;
    form.end = 0;
    form.ends.clear();
    form.seen.clear();
    bool runs = true;    // every row sees one run
    bool from0 = true;   // that begins at key 0
    int32_t width = 0;
    for (const RowView & v : form.rows) {
        form.bias |= v.bias;
        if (v.count == 0) {
            continue;
        }
        form.first = std::min<int64_t>(form.first, v.first);
        form.end = std::max<int64_t>(form.end, v.end);
        runs &= v.end - v.first == v.count;
        from0 &= v.first == 0;
        width = std::max(width, v.end - v.first);
    }
    form.first = std::min(form.first, form.end);
    form.kind = MaskForm::additive;
    if (form.bias || !runs) {
        return;
    }
    bool sliding = true; // rows see the last `width` keys before their end, or all from `first` on
    for (const RowView & v : form.rows) {
        sliding &= v.count == 0 || v.first == form.first || v.count == width;
    }
    if (!sliding) {
        return;
    }
    form.kind = from0 ? MaskForm::prefix : MaskForm::window;
    form.width = width;
    for (const RowView & v : form.rows) {
        form.ends.push_back(uint64_t(v.end));
    }
}

void MaskForm::range(int64_t r0, int64_t n, int64_t keys, int64_t & lo, int64_t & hi) const {
    lo = 0;
    hi = keys;
    if (rows.empty()) {
        return;
    }
    lo = keys;
    hi = 0;
    for (int64_t r = r0; r < r0 + n; r++) {
        if (rows[size_t(r)].count > 0) {
            lo = std::min<int64_t>(lo, rows[size_t(r)].first);
            hi = std::max<int64_t>(hi, rows[size_t(r)].end);
        }
    }
    lo = std::min(lo, hi);
}

void MaskForms::look(const Op & op, const ggml_fp16_t * at, MaskForm & form) {
    const int64_t rows = op.rows, keys = op.keys;
    const size_t step = op.mask->nb[1] / sizeof(ggml_fp16_t);
    form.rows.assign(size_t(rows), RowView());
    team_.run(int(std::min<int64_t>(rows, 1 + rows * keys / 65536)), [&](int ith, int nth) {
        for (int64_t r = ith; r < rows; r += nth) {
            form.rows[size_t(r)] = look_at_row(at + size_t(r) * step, keys);
        }
    });
    settle(form, keys);
    if (form.kind != MaskForm::additive) {
        return;
    }
    form.seen.assign(size_t(keys), 0);
    bool same = !form.bias;
    for (int64_t r = 1; r < rows && same; r++) {
        same = memcmp(at, at + size_t(r) * step, size_t(keys) * sizeof *at) == 0;
    }
    const int64_t distinct = same ? 1 : rows;
    // By columns, so that threads write apart.
    team_.run(int(1 + distinct * keys / 262144), [&](int ith, int nth) {
        const int64_t begin = keys * ith / nth, end = keys * (ith + 1) / nth;
        for (int64_t r = 0; r < distinct; r++) {
            const ggml_fp16_t * m = at + size_t(r) * step;
            for (int64_t j = begin; j < end; j++) {
                form.seen[size_t(j)] |= uint8_t(m[j] != HIDDEN);
            }
        }
    });
    if (same) {
        form.kind = MaskForm::same_set;
    }
}

static uint64_t print_of(const void * data, size_t bytes) {
    uint64_t h = 0x9E3779B97F4A7C15ull;
    const char * p = static_cast<const char *>(data);
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t x;
        memcpy(&x, p + i, 8);
        h = (h ^ x) * 0xFF51AFD7ED558CCDull;
        h ^= h >> 29;
    }
    for (size_t i = bytes / 8 * 8; i < bytes; i++) {
        h = (h ^ uint8_t(p[i])) * 0xFF51AFD7ED558CCDull;
    }
    return h;
}

const MaskForm & MaskForms::of(const Op & op, int64_t s, int64_t h, const void * cache) {
    if (!op.mask) {
        none_ = MaskForm();
        none_.end = op.keys;
        return none_;
    }
    const ggml_fp16_t * at = op.mask_at(s, h, 0);
    const uint64_t print = print_of(op.mask_at(s, h, op.rows - 1), size_t(op.keys) * sizeof(ggml_fp16_t));
    Entry * entry = nullptr;
    for (Entry & e : entries_) {
        if (e.data == at) {
            entry = &e;
        }
    }
    if (entry) {
        // A cache that asks a second time means a new evaluation, whose mask is another in the same place.
        const bool again = std::find(entry->users.begin(), entry->users.end(), cache) != entry->users.end();
        if (cache && !again && entry->keys == op.keys && entry->rows == op.rows && entry->print == print) {
            entry->users.push_back(cache);
            return entry->form;
        }
    } else if (entries_.size() < 1024) {
        entry = &entries_.emplace_back();
    } else {
        entry = &entries_[next_++ % entries_.size()];
    }
    entry->data = at;
    entry->keys = op.keys;
    entry->rows = op.rows;
    entry->print = print;
    entry->users.clear();
    if (cache) {
        entry->users.push_back(cache);
    }
    look(op, at, entry->form);
    return entry->form;
}

} // namespace ice
