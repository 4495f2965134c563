// What a session knows of one stream of a key cache: a log of the cells it took, in order.
#pragma once

#include "mask_form.h"
#include "op.h"
#include "scratch.h"
#include "stats.h"
#include "team.h"

#include "iceformer.h"

#include <cstdint>
#include <vector>

namespace ice {

// The host's cache is an array of cells that are written in any order and any number of times. A session only grows at its
// end, so it keeps a log: token t of the session is a copy of cell `cell_of(t)`. A cell that is written again becomes a
// new token; the old one is dead, hidden by the mask until the log is cut or compacted. While cells are written in order
// and never again, which is the usual case, token and cell are the same number.
//
// Nothing is trusted for long: every attention compares 16 bytes of keys the session knows with the cache, so that writes
// that no graph shows (state restored, cache cleared, streams copied, positions shifted) are found, too. All keys are compared
// in the first layer of an evaluation and wherever many rows attend; elsewhere every eighth, another one each time, which meets
// every run of eight changed cells at once. One difference anywhere, and all keys of all layers are compared.
class KeyLog {
public:
    struct Shape {
        int64_t dk, dv, heads, heads_kv;
        float scale, softcap;
        ggml_type type_k, type_v;
        int64_t capacity;
        ice_mode mode;
        float tolerance;
        bool operator==(const Shape & o) const;
    };

    KeyLog(Team & team, Stats & stats) : team_(team), stats_(stats) {}
    ~KeyLog();
    KeyLog(const KeyLog &) = delete;
    KeyLog & operator=(const KeyLog &) = delete;

    // Takes a shape; what was known under another is forgotten. False when there is no memory.
    bool open(const Shape & shape);
    // Forgets every key.
    void forget();
    // A cell was written.
    void wrote(int64_t cell);
    // Makes the log know every cell that some row sees, as it is in the cache now. False when the session refuses (NaN,
    // numbers beyond f16): the log is empty then. `whole`: compare every key. `changed` is set when
    // one had changed unseen.
    bool sync(const Op & op, int64_t s, const MaskForm & form, bool whole, bool & changed);

    ice_session * session() const { return session_; }
    int64_t size() const { return int64_t(cells_.size()); }
    int32_t cell_of(int64_t token) const { return cells_[size_t(token)]; } // -1: dead
    // Token t is cell t, all of them.
    bool in_order() const { return dead_ == 0 && disorder_ >= size(); }

private:
    struct Print {
        uint64_t a, b;
        bool operator==(const Print & o) const { return a == o.a && b == o.b; }
    };

    void close();
    void kill(int64_t token);
    bool cut(int64_t size);
    bool check(const Op & op, int64_t s, bool whole);
    bool append(const Op & op, int64_t s, const std::vector<int32_t> & cells);
    Print print_k(const Op & op, int64_t s, int64_t cell) const;
    uint64_t print_v(const Op & op, int64_t s, int64_t cell) const;

    Team & team_;
    Stats & stats_;
    Shape shape_ = {};
    ice_session * session_ = nullptr;
    size_t bytes_ = 0;
    std::vector<int32_t> cells_;  // by token
    std::vector<int32_t> tokens_; // by cell, -1: none
    std::vector<Print> prints_;   // by token
    std::vector<uint64_t> prints_v_;
    int64_t dead_ = 0, first_dead_ = 0; // no token before first_dead_ is dead
    int64_t disorder_ = 0;              // tokens before this one are in order
    std::vector<int32_t> written_;      // cells written since the last sync, in order
    int64_t room_ = 0;                  // tokens the session has room for
    unsigned turn_ = 0;
    Scratch keys_, values_;
};

} // namespace ice
