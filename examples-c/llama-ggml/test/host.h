// The stock host in a test: its shared libraries from a folder, and the plugin beside them.
#pragma once

#include "ggml-backend.h"

namespace test {

// Loads the CPU backend that fits this machine from the folder of the stock libraries, and the plugin unless it is "-".
// Ends the program with a message if one of them cannot be loaded.
void load(const char * libraries, const char * plugin);

// Backend of a device by name ("CPU", "iceformer"), with so many threads.
ggml_backend_t backend(const char * device, int threads);

} // namespace test
