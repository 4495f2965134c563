// What a backend did.
#pragma once

#include "iceformer-ggml-stats.h"

#include <chrono>
#include <cstdint>

namespace ice {

using Stats = iceformer_ggml_stats;

inline void add(Stats & to, const Stats & s) {
    to.attend_calls += s.attend_calls;
    to.attend_accelerated += s.attend_accelerated;
    to.attend_exact += s.attend_exact;
    to.attend_naive += s.attend_naive;
    to.attend_host += s.attend_host;
    to.store_calls += s.store_calls;
    to.rows_appended += s.rows_appended;
    to.cells_lost += s.cells_lost;
    to.rebuilds += s.rebuilds;
    to.unseen_writes += s.unseen_writes;
    to.pairs += s.pairs;
    to.pairs_dense += s.pairs_dense;
    to.attend_seconds += s.attend_seconds;
    to.mask_seconds += s.mask_seconds;
    to.check_seconds += s.check_seconds;
    to.append_seconds += s.append_seconds;
    to.store_seconds += s.store_seconds;
    to.decode_seconds += s.decode_seconds;
    to.decode_calls += s.decode_calls;
    to.session_bytes += s.session_bytes;
    to.rows_measured += s.rows_measured;
    to.squares_measured += s.squares_measured;
    to.checks += s.checks;
    to.check_error += s.check_error;
    to.check_output += s.check_output;
    to.exact_seconds += s.exact_seconds;
}

inline double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Adds the time of its life to a counter.
class Timer {
public:
    explicit Timer(double & to) : to_(to), begin_(now()) {}
    ~Timer() { to_ += now() - begin_; }

private:
    double & to_;
    double begin_;
};

} // namespace ice
