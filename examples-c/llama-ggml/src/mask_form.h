// What a mask says, in the simplest terms that are exactly it.
#pragma once

#include "op.h"
#include "team.h"

#include <cstdint>
#include <deque>
#include <vector>

namespace ice {

constexpr ggml_fp16_t HIDDEN = 0xFC00; // -inf

// What one row sees: keys first .. end, `count` of them; bias: some visible entry is not 0.
struct RowView {
    int32_t first = 0, end = 0, count = 0;
    bool bias = false;
    bool operator==(const RowView & o) const {
        return first == o.first && end == o.end && count == o.count && bias == o.bias;
    }
};

struct MaskForm {
    enum Kind {
        all,      // no mask, or nothing hidden
        prefix,   // row i sees the first ends[i] keys
        window,   // row i sees ends[i] keys less those `width` and more before its last; keys below `first` are not seen
        same_set, // all rows see the same keys, with gaps
        additive, // anything else
    };

    Kind kind = all;
    bool bias = false;             // an entry is neither 0 nor -inf
    std::vector<RowView> rows;     // empty when there is no mask
    std::vector<uint64_t> ends;    // prefix and window: end of what a row sees
    int64_t first = 0, end = 0;    // some row sees keys of first .. end, no row others
    int64_t width = 0;             // window
    std::vector<uint8_t> seen;     // same_set and additive: keys that some row sees

    // Keys of the union that rows r0 .. r0 + n may see.
    void range(int64_t r0, int64_t n, int64_t keys, int64_t & lo, int64_t & hi) const;
    bool sees(int64_t key) const {
        return key >= first && key < end && (seen.empty() || seen[size_t(key)] != 0);
    }
};

// One row of a mask: `m[0 .. keys]`. For tests too.
RowView look_at_row(const ggml_fp16_t * m, int64_t keys);

// Decides the kind from `rows` and fills what it needs but `seen`.
void settle(MaskForm & form, int64_t keys);

// Forms of the masks of an evaluation of the host's graph: looked at once, used by every layer that gets the same mask.
class MaskForms {
public:
    explicit MaskForms(Team & team) : team_(team) {}

    // The form of the plane of stream `s` and head `h`. `cache` is the key cache of the layer that asks, null if there is
    // none: then nothing is remembered. Valid until that many other planes were asked for.
    const MaskForm & of(const Op & op, int64_t s, int64_t h, const void * cache);

private:
    struct Entry {
        const void * data = nullptr;
        int64_t keys = 0, rows = 0;
        uint64_t print = 0;             // of the last row
        std::vector<const void *> users; // caches that used it in this evaluation
        MaskForm form;
    };

    void look(const Op & op, const ggml_fp16_t * at, MaskForm & form);

    Team & team_;
    std::deque<Entry> entries_;
    size_t next_ = 0;
    MaskForm none_;
};

} // namespace ice
