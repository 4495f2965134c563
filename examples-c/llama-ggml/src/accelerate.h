// Attention by sessions: one per stream of a key cache, kept from call to call.
#pragma once

#include "key_log.h"
#include "mask_form.h"
#include "op.h"
#include "report.h"
#include "settings.h"
#include "stats.h"
#include "team.h"

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace ice {

class Accelerate {
public:
    Accelerate(const Settings & settings, Team & team, Stats & stats) : settings_(settings), team_(team), stats_(stats) {}

    // Whether a session may serve stream `s`, by what it sees.
    bool wants(const Op & op, const MaskForm & form) const;
    // Attends stream `s` and counts what the library says in `counts`. False: nothing was done that exact attention would not
    // overwrite.
    bool run(const Op & op, int64_t s, const MaskForm & form, LayerCounts & counts);
    // A row of a key cache was written.
    void wrote(const ggml_tensor * root, const char * row);

private:
    struct Entry {
        std::unique_ptr<KeyLog> log;
        uint64_t epoch = 0;
        int rest = 0; // attentions to come that are exact, after a refusal
    };
    // Rows r0 .. r0 + nr with a mask of their own, in the order of the log.
    struct Job {
        int64_t r0 = 0, nr = 0;
        ice_mask mask;
        std::vector<uint64_t> prefix;
        std::vector<uint8_t> keep;
    };

    bool jobs_of(const Op & op, int64_t s, const MaskForm & form, const KeyLog & log, std::vector<Job> & jobs) const;

    const Settings & settings_;
    Team & team_;
    Stats & stats_;
    std::unordered_map<const void *, Entry> entries_; // by first byte of the stream
    std::unordered_set<const void *> seen_; // streams that attended in this evaluation of the host's graph
    const void * first_ = nullptr;          // its first layer's cache: there every key is compared
    bool changed_ = false;                  // something changed unseen in this evaluation
    Scratch work_, lse_;
};

// Key caches that are about to be written by something else than SET_ROWS: every session over them starts anew. For the
// whole process, because the host asks before it knows which backend computes.
void mark_stale(const ggml_tensor * root);

} // namespace ice
