// What a context did, layer by layer: for people.
#pragma once

#include "settings.h"
#include "stats.h"

#include <cstdint>
#include <cstdio>
#include <map>

namespace ice {

// Counts of one layer, of prompts and of steps. Rates of the exact kernel differ between the two.
struct LayerCounts {
    struct Kind {
        uint64_t calls = 0;
        double seconds = 0;       // of attention
        double pairs = 0;         // visible query-key pairs, all heads
        double pairs_exact = 0;   // of them in calls that were exact
        double seconds_exact = 0; // of those calls
    };
    Kind kinds[2];
    uint64_t scored = 0, dense = 0; // pairs of sessions' calls: scored, visible
    uint64_t sparse = 0;            // visible pairs of the calls that left some unscored
    uint64_t rows_measured = 0;
    double squares = 0, p95 = 0;    // sums over sampled rows: squared errors, 95th percentiles of their calls
};

// One attention that was computed both ways.
struct Comparison {
    double pairs, seconds, error, output;
};

class Report {
public:
    static constexpr int64_t FEW = 4; // rows up to which a call is a step
    static int kind_of(int64_t rows) { return rows <= FEW; }

    LayerCounts & of(int layer) { return layers_[layer]; }
    // Whether the next attention by a session is to be computed exactly as well: one in 31 of its kind, so that the layers take turns.
    bool turn(int kind) { return turns_[kind]++ % 31 == 0; }
    void compared(int kind, const Comparison & c);
    void print(FILE * to, const Stats & stats, const Settings & settings) const;

private:
    double exact_rate(int kind) const; // seconds a pair, 0: not known

    std::map<int, LayerCounts> layers_; // -1: attention over no cache
    Comparison sums_[2] = {};
    uint64_t comparisons_ = 0, turns_[2] = {};
};

} // namespace ice
