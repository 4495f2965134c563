#include "host.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace test {

void load(const char * libraries, const char * plugin) {
    unsetenv("GGML_BACKEND_PATH");
    ggml_backend_load_all_from_path(libraries);
    if (!ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) {
        fprintf(stderr, "no CPU backend in %s\n", libraries);
        exit(1);
    }
    if (strcmp(plugin, "-") != 0 && !ggml_backend_load(plugin)) {
        fprintf(stderr, "%s was not loaded\n", plugin);
        exit(1);
    }
}

ggml_backend_t backend(const char * device, int threads) {
    ggml_backend_dev_t dev = ggml_backend_dev_by_name(device);
    if (!dev) {
        fprintf(stderr, "no device %s\n", device);
        exit(1);
    }
    ggml_backend_t b = ggml_backend_dev_init(dev, nullptr);
    auto set = reinterpret_cast<void (*)(ggml_backend_t, int)>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(dev), "ggml_backend_set_n_threads"));
    if (!b || !set) {
        fprintf(stderr, "device %s: no backend\n", device);
        exit(1);
    }
    set(b, threads);
    return b;
}

} // namespace test
