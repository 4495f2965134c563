#include "key_log.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace ice {

namespace {

constexpr int64_t BATCH = 512;      // rows gathered at a time
constexpr int64_t MANY_ROWS = 64;   // rows from which on holes in the log are worth closing
constexpr int64_t WHOLE_ROWS = 16;  // rows from which on every key is compared in every layer
constexpr unsigned TURNS = 32;      // else, attentions after which every key was compared
constexpr unsigned V_TURNS = 64;    // attentions after which every value was

bool direct(ggml_type type) { return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16; }

ice_dtype dtype_of(ggml_type type) {
    return type == GGML_TYPE_F16 ? ICE_F16 : type == GGML_TYPE_BF16 ? ICE_BF16 : ICE_F32;
}

} // namespace

bool KeyLog::Shape::operator==(const Shape & o) const {
    return dk == o.dk && dv == o.dv && heads == o.heads && heads_kv == o.heads_kv && scale == o.scale &&
           softcap == o.softcap && type_k == o.type_k && type_v == o.type_v && capacity == o.capacity && mode == o.mode &&
           tolerance == o.tolerance;
}

KeyLog::~KeyLog() { close(); }

void KeyLog::close() {
    ice_session_free(session_);
    session_ = nullptr;
    stats_.session_bytes -= bytes_;
    bytes_ = 0;
    cells_.clear();
    prints_.clear();
    prints_v_.clear();
    tokens_.clear();
    dead_ = first_dead_ = disorder_ = 0;
}

bool KeyLog::open(const Shape & shape) {
    if (session_ && shape == shape_) {
        return true;
    }
    close();
    ice_session_options o;
    ice_session_options_init(&o);
    o.heads_q = uint32_t(shape.heads);
    o.heads_kv = uint32_t(shape.heads_kv);
    o.dim_k = uint32_t(shape.dk);
    o.dim_v = uint32_t(shape.dv);
    // A cache in f32 or bf16 is copied in its own type; all others, quantised ones too, fit f16.
    const bool f32 = shape.type_k == GGML_TYPE_F32 || shape.type_v == GGML_TYPE_F32;
    const bool bf16 = shape.type_k == GGML_TYPE_BF16 && shape.type_v == GGML_TYPE_BF16;
    o.kv_dtype = f32 ? ICE_F32 : bf16 ? ICE_BF16 : ICE_F16;
    // Room for dead tokens, so that compaction is rare.
    const int64_t capacity = shape.capacity + std::max<int64_t>(shape.capacity / 4, BATCH);
    o.capacity = size_t(capacity);
    o.attention.mode = shape.mode;
    o.attention.tolerance = shape.tolerance;
    o.attention.scale = shape.scale;
    o.attention.softcap = shape.softcap;
    try {
        cells_.reserve(size_t(capacity));
        prints_.reserve(size_t(capacity));
        prints_v_.reserve(size_t(capacity));
        tokens_.assign(size_t(shape.capacity), -1);
    } catch (...) {
        return false;
    }
    ice_error err;
    ice_error_init(&err);
    if (ice_session_new(&o, &session_, &err) != ICE_OK) {
        session_ = nullptr;
        return false;
    }
    ice_memory memory;
    ice_memory_init(&memory);
    if (ice_session_memory(session_, &memory) == ICE_OK) {
        bytes_ = memory.reserved + size_t(capacity) * (sizeof cells_[0] + sizeof prints_[0] + sizeof prints_v_[0]) +
                 tokens_.size() * sizeof tokens_[0];
        stats_.session_bytes += bytes_;
    }
    shape_ = shape;
    room_ = capacity;
    return true;
}

void KeyLog::forget() {
    written_.clear();
    if (session_) {
        stats_.rebuilds += !cells_.empty();
        cut(0);
    }
}

void KeyLog::wrote(int64_t cell) {
    if (!session_ || cell >= int64_t(tokens_.size())) {
        return;
    }
    if (tokens_[size_t(cell)] >= 0) {
        kill(tokens_[size_t(cell)]);
    }
    written_.push_back(int32_t(cell));
    if (written_.size() > 4 * tokens_.size() + size_t(BATCH)) {
        written_.clear(); // only the order of what is appended next is lost
    }
}

void KeyLog::kill(int64_t token) {
    tokens_[size_t(cells_[size_t(token)])] = -1;
    cells_[size_t(token)] = -1;
    first_dead_ = dead_ == 0 ? token : std::min(first_dead_, token);
    dead_++;
    stats_.cells_lost++;
}

bool KeyLog::cut(int64_t n) {
    for (int64_t t = n; t < size(); t++) {
        if (cells_[size_t(t)] >= 0) {
            tokens_[size_t(cells_[size_t(t)])] = -1;
        } else {
            dead_--;
        }
    }
    cells_.resize(size_t(n));
    prints_.resize(size_t(n));
    prints_v_.resize(size_t(n));
    first_dead_ = std::min(first_dead_, n);
    disorder_ = std::min(disorder_, n);
    return ice_session_truncate(session_, size_t(n)) == ICE_OK;
}

KeyLog::Print KeyLog::print_k(const Op & op, int64_t s, int64_t cell) const {
    const char * row = op.k_at(s, 0, cell);
    const size_t n = ggml_row_size(op.k->type, op.dk);
    Print p = {0, 0};
    memcpy(&p, row, std::min(n, sizeof p));
    return p;
}

uint64_t KeyLog::print_v(const Op & op, int64_t s, int64_t cell) const {
    uint64_t p = 0;
    memcpy(&p, op.v_at(s, 0, cell), std::min(ggml_row_size(op.v->type, op.dv), sizeof p));
    return p;
}

// Kills tokens whose cells changed; whether there were any among those looked at.
bool KeyLog::check(const Op & op, int64_t s, bool whole) {
    Timer timer(stats_.check_seconds);
    turn_++;
    const int64_t n = size(), step = whole ? 1 : TURNS, first = whole ? 0 : int64_t(turn_ % TURNS);
    const char * base = op.k_at(s, 0, 0);
    const size_t stride = op.k->nb[1];
    const bool long_rows = ggml_row_size(op.k->type, op.dk) >= sizeof(Print);
    std::atomic<int64_t> changed{0};
    auto same = [&](int64_t t) {
        Print p;
        if (long_rows) {
            memcpy(&p, base + size_t(cells_[size_t(t)]) * stride, sizeof p);
        } else {
            p = print_k(op, s, cells_[size_t(t)]);
        }
        return p == prints_[size_t(t)];
    };
    const bool ordered = in_order() && long_rows && n <= op.keys;
    team_.run(int(1 + n / step / 4096), [&](int ith, int nth) {
        int64_t bad = 0;
        const int64_t count = (n - first + step - 1) / step, begin = count * ith / nth, end = count * (ith + 1) / nth;
        if (ordered) { // no branches
            const char * at = base + size_t(first + begin * step) * stride;
            for (int64_t i = begin; i < end; i++, at += size_t(step) * stride) {
                const Print & known = prints_[size_t(first + i * step)];
                Print p;
                memcpy(&p, at, sizeof p);
                bad += ((p.a ^ known.a) | (p.b ^ known.b)) != 0;
            }
        } else {
            for (int64_t i = begin; i < end; i++) {
                const int64_t t = first + i * step;
                bad += cells_[size_t(t)] >= 0 && cells_[size_t(t)] < op.keys && !same(t);
            }
        }
        changed += bad;
    });
    bool found = changed > 0;
    for (int64_t t = turn_ % V_TURNS; t < n; t += V_TURNS) {
        const int32_t cell = cells_[size_t(t)];
        if (cell >= 0 && cell < op.keys && print_v(op, s, cell) != prints_v_[size_t(t)]) {
            stats_.unseen_writes++;
            kill(t);
            found = true;
        }
    }
    for (int64_t t = 0; found && t < n; t++) {
        if (cells_[size_t(t)] >= 0 && cells_[size_t(t)] < op.keys && !same(t)) {
            stats_.unseen_writes++;
            kill(t);
        }
    }
    return found;
}

bool KeyLog::append(const Op & op, int64_t s, const std::vector<int32_t> & cells) {
    Timer timer(stats_.append_seconds);
    const int64_t heads = shape_.heads_kv, dk = shape_.dk, dv = shape_.dv;
    for (size_t at = 0; at < cells.size();) {
        // A run of neighbouring cells is appended where it lies, others are gathered first.
        size_t run = 1;
        while (at + run < cells.size() && cells[at + run] == cells[at] + int32_t(run)) {
            run++;
        }
        const bool in_place = run >= 16 && direct(op.k->type) && direct(op.v->type);
        int64_t n = in_place ? int64_t(run) : std::min<int64_t>(int64_t(cells.size() - at), BATCH);
        if (in_place) {
            n = std::min<int64_t>(n, 8 * BATCH);
        }
        ice_tensor k = {}, v = {};
        if (in_place) {
            k.data = op.k_at(s, 0, cells[at]);
            k.dtype = dtype_of(op.k->type);
            k.row_stride = op.k->nb[1];
            k.head_stride = op.k->nb[2];
            v.data = op.v_at(s, 0, cells[at]);
            v.dtype = dtype_of(op.v->type);
            v.row_stride = op.v->nb[1];
            v.head_stride = op.v->nb[2];
        } else {
            float * keys = keys_.take_of<float>(size_t(heads * n * dk)), * values = values_.take_of<float>(size_t(heads * n * dv));
            if (!keys || !values) {
                return false;
            }
            team_.run(int(1 + heads * n * (dk + dv) / 65536), [&](int ith, int nth) {
                for (int64_t i = ith; i < heads * n; i += nth) {
                    const int64_t h = i / n, j = cells[at + size_t(i % n)];
                    row_to_float(op.k->type, op.k_at(s, h * op.group_k, j), keys + i * dk, dk);
                    row_to_float(op.v->type, op.v_at(s, h * op.group_v, j), values + i * dv, dv);
                }
            });
            k.data = keys;
            v.data = values;
        }
        std::atomic<bool> ok{true};
        const size_t known = prints_.size();
        prints_.resize(known + size_t(n));
        prints_v_.resize(known + size_t(n));
        team_.run(int(n >= 16 ? heads : 1), [&](int ith, int nth) {
            if (ice_session_append(session_, &k, &v, size_t(n), uint32_t(ith), uint32_t(nth), nullptr) != ICE_OK) {
                ok = false;
            }
            for (int64_t i = n * ith / nth; i < n * (ith + 1) / nth; i++) {
                prints_[known + size_t(i)] = print_k(op, s, cells[at + size_t(i)]);
                prints_v_[known + size_t(i)] = print_v(op, s, cells[at + size_t(i)]);
            }
        });
        if (ice_session_commit(session_) != ICE_OK || !ok) {
            prints_.resize(known);
            prints_v_.resize(known);
            return false;
        }
        for (int64_t i = 0; i < n; i++) {
            const int32_t cell = cells[at + size_t(i)];
            if (disorder_ == size() && cell == int32_t(size())) {
                disorder_++;
            }
            tokens_[size_t(cell)] = int32_t(size());
            cells_.push_back(cell);
        }
        stats_.rows_appended += uint64_t(n);
        at += size_t(n);
    }
    return true;
}

bool KeyLog::sync(const Op & op, int64_t s, const MaskForm & form, bool whole, bool & changed) {
    changed |= check(op, s, whole || op.rows >= WHOLE_ROWS);
    if (dead_ > 0) {
        // What comes after the first dead token and is seen by nobody goes with it.
        int64_t last = size();
        while (last > first_dead_ && (cells_[size_t(last - 1)] < 0 || !form.sees(cells_[size_t(last - 1)]))) {
            last--;
        }
        bool whole = true;
        if (last < size()) {
            whole = cut(last);
        }
        while (first_dead_ < size() && cells_[size_t(first_dead_)] >= 0) {
            first_dead_++;
        }
        if (!whole) {
            forget();
            return false;
        }
    }
    // Cells that somebody sees and the log does not know: first those that came unseen, then the written ones in order.
    std::vector<int32_t> missing;
    const int64_t end = std::min<int64_t>(form.end, int64_t(tokens_.size()));
    if (form.end > end) {
        return false;
    }
    for (int32_t cell : written_) {
        if (tokens_[size_t(cell)] == -1 && form.sees(cell)) {
            tokens_[size_t(cell)] = -2; // listed
            missing.push_back(cell);
        }
    }
    written_.clear();
    const size_t written = missing.size();
    const int64_t known = dead_ == 0 ? disorder_ : 0; // cells in front that are all in the log
    for (int64_t c = std::max(form.first, known); c < end; c++) {
        if (tokens_[size_t(c)] == -1 && form.sees(c)) {
            missing.push_back(int32_t(c));
        }
    }
    std::rotate(missing.begin(), missing.begin() + std::ptrdiff_t(written), missing.end());
    for (int32_t cell : missing) {
        tokens_[size_t(cell)] = -1;
    }
    // Holes are closed where they cost more than closing them: many rows to attend, no room, or a quarter dead.
    const int64_t room = room_ - size();
    if (dead_ > 0 && (op.rows >= MANY_ROWS || int64_t(missing.size()) > room || dead_ * 4 > size())) {
        std::vector<int32_t> kept;
        for (int64_t t = first_dead_; t < size(); t++) {
            if (cells_[size_t(t)] >= 0) {
                kept.push_back(cells_[size_t(t)]);
            }
        }
        stats_.rebuilds++;
        if (!cut(first_dead_)) {
            forget();
            return false;
        }
        missing.insert(missing.begin(), kept.begin(), kept.end());
    }
    if (int64_t(missing.size()) > room_ - size() || !append(op, s, missing)) {
        forget();
        return false;
    }
    return true;
}

} // namespace ice
