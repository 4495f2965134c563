// Exact attention on the host's own rows: no copy of the cache, any type, any mask.
#pragma once

#include "mask_form.h"
#include "op.h"
#include "scratch.h"
#include "stats.h"
#include "team.h"

#include <vector>

namespace ice {

// Memory of one thread.
struct ExactScratch {
    Scratch work, keys, values, bias, part, part_lse, all, all_lse, prefix, row, sum;
};

class Exact {
public:
    explicit Exact(Team & team, Stats & stats) : team_(team), stats_(stats) {}

    // Attends stream `s`. `form` is the mask of head 0 of the stream, used where all heads share it. False when memory
    // ran out.
    bool run(const Op & op, int64_t s, const MaskForm & form);

private:
    Team & team_;
    Stats & stats_;
    std::vector<ExactScratch> scratch_;
    Scratch partial_, partial_lse_;
};

} // namespace ice
