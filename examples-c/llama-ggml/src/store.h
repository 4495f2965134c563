// SET_ROWS into a key cache: the host's store, done here so that every write is seen.
#pragma once

#include "team.h"

#include "ggml.h"

#include <functional>

namespace ice {

bool store_supported(const ggml_tensor * node);

// Stores the rows in the type of the cache; `wrote` gets the address of each row that changed, in order.
bool store(Team & team, const ggml_tensor * node, const std::function<void(const char *)> & wrote);

} // namespace ice
