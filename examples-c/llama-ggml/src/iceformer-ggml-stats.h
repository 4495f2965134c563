// What the plugin did, by kind: counts, and seconds of wall-clock time. A program gets it by
//
//   void (*stats)(struct iceformer_ggml_stats *, bool reset) = ggml_backend_reg_get_proc_address(reg, "iceformer_stats");
//
// with reg = ggml_backend_reg_by_name("iceformer"): sums over all contexts of the process, to be read between evaluations.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C"
#endif
struct iceformer_ggml_stats {
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
    uint64_t session_bytes;     // memory of all sessions now, what is known of their keys included
    uint64_t rows_measured;     // sampled rows, whose error sessions measured
    double squares_measured;    // their squared relative errors, summed: the root of the mean is the measured error
    uint64_t checks;            // with ICE_STATS=1: accelerated attentions that were computed exactly as well
    double check_error;         // squared differences of their outputs
    double check_output;        // squared outputs
    double exact_seconds;       // of the exact ones; in no other time here
};
