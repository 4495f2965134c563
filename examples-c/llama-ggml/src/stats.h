// What a backend did, by kind: calls and seconds of wall-clock time.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>

// Also read by programs, through the registry's address "iceformer_stats": plain C.
extern "C" struct iceformer_ggml_stats {
    uint64_t attend_calls;      // FLASH_ATTN_EXT nodes
    uint64_t attend_accelerated; // of them by a session
    uint64_t attend_exact;      // of them by the exact kernel on the host's rows
    uint64_t attend_naive;      // parts of nodes that only the plain loop could do
    uint64_t attend_host;       // of them handed back to the host
    uint64_t store_calls;       // SET_ROWS nodes
    uint64_t rows_appended;     // keys that sessions took
    uint64_t cells_lost;        // keys that were overwritten or changed and forgotten
    uint64_t rebuilds;          // logs that were cut and appended again
    uint64_t unseen_writes;     // keys that changed without a SET_ROWS: found by fingerprint
    uint64_t pairs;             // query-key pairs scored exactly by sessions
    uint64_t pairs_dense;       // pairs those sessions saw
    double attend_seconds;      // FLASH_ATTN_EXT, all that follows included
    double mask_seconds;        // looking at masks
    double check_seconds;       // fingerprints
    double append_seconds;      // keys into sessions, cells included
    double store_seconds;       // SET_ROWS
    double decode_seconds;      // FLASH_ATTN_EXT with one row per stream
    uint64_t decode_calls;
    uint64_t session_bytes;     // memory of all sessions now
};

namespace ice {

using Stats = iceformer_ggml_stats;

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
