// The functions of ggml that the plugin calls, found in the host that loads it.
#pragma once

namespace ice {

// Looks for ggml in the library or program that `caller` is code of, then in the whole process. Null, or the name of the function
// that is missing. Until it has returned null no function of ggml may be called.
const char * find_ggml(const void * caller);

} // namespace ice
