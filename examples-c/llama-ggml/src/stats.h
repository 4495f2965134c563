// What a backend did.
#pragma once

#include "iceformer-ggml-stats.h"

#include <chrono>
#include <cstdint>
#include <cstdio>

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

inline void print(const Stats & s) {
    fprintf(stderr,
            "iceformer: %llu attention ops in %.3f s (%llu accelerated, %llu exact, %llu by the host, %llu plain parts): "
            "masks %.3f s, fingerprints %.3f s, appending %.3f s; %llu one-row ops in %.3f s; %llu stores in %.3f s\n",
            (unsigned long long) s.attend_calls, s.attend_seconds, (unsigned long long) s.attend_accelerated,
            (unsigned long long) s.attend_exact, (unsigned long long) s.attend_host, (unsigned long long) s.attend_naive,
            s.mask_seconds, s.check_seconds, s.append_seconds, (unsigned long long) s.decode_calls, s.decode_seconds,
            (unsigned long long) s.store_calls, s.store_seconds);
    fprintf(stderr,
            "iceformer: sessions took %llu keys (%llu forgotten, %llu changed unseen, %llu rebuilds), %.1f MiB, scored %.1f %% "
            "of the pairs\n",
            (unsigned long long) s.rows_appended, (unsigned long long) s.cells_lost, (unsigned long long) s.unseen_writes,
            (unsigned long long) s.rebuilds, double(s.session_bytes) / (1 << 20),
            s.pairs_dense ? 100.0 * double(s.pairs) / double(s.pairs_dense) : 100.0);
}

} // namespace ice
