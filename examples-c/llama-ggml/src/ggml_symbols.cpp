#include "ggml_symbols.h"

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <dlfcn.h>

// The plugin names no library of ggml and leaves no symbol of it open. Hosts call their copy libggml-base.so or libggml-base.so.0,
// link it statically, or load it privately (Node, Python), where an open symbol is not found. So ggml is asked for by hand,
// beginning with the library whose code loads the plugin. The functions below have ggml's names and are seen in the plugin alone.
#define GGML_FUNCTIONS(F)                                                                                                       \
    F(const char *, ggml_version, (void), ())                                                                                   \
    F(const char *, ggml_op_name, (enum ggml_op op), (op))                                                                      \
    F(const char *, ggml_type_name, (enum ggml_type type), (type))                                                              \
    F(size_t, ggml_type_size, (enum ggml_type type), (type))                                                                    \
    F(size_t, ggml_row_size, (enum ggml_type type, int64_t n), (type, n))                                                       \
    F(const struct ggml_type_traits *, ggml_get_type_traits, (enum ggml_type type), (type))                                     \
    F(int64_t, ggml_nelements, (const struct ggml_tensor * t), (t))                                                             \
    F(size_t, ggml_nbytes, (const struct ggml_tensor * t), (t))                                                                 \
    F(float, ggml_fp16_to_fp32, (ggml_fp16_t x), (x))                                                                           \
    F(void, ggml_fp16_to_fp32_row, (const ggml_fp16_t * x, float * y, int64_t n), (x, y, n))                                    \
    F(struct ggml_context *, ggml_init, (struct ggml_init_params params), (params))                                             \
    F(void, ggml_free, (struct ggml_context * ctx), (ctx))                                                                      \
    F(size_t, ggml_graph_overhead_custom, (size_t size, bool grads), (size, grads))                                             \
    F(struct ggml_cgraph *, ggml_new_graph_custom, (struct ggml_context * ctx, size_t size, bool grads), (ctx, size, grads))    \
    F(void, ggml_graph_clear, (struct ggml_cgraph * graph), (graph))                                                            \
    F(void, ggml_graph_add_node, (struct ggml_cgraph * graph, struct ggml_tensor * node), (graph, node))                        \
    F(int, ggml_graph_n_nodes, (struct ggml_cgraph * graph), (graph))                                                           \
    F(struct ggml_tensor *, ggml_graph_node, (struct ggml_cgraph * graph, int i), (graph, i))                                   \
    F(bool, ggml_backend_buft_is_host, (ggml_backend_buffer_type_t type), (type))                                               \
    F(ggml_backend_buffer_type_t, ggml_backend_cpu_buffer_type, (void), ())                                                     \
    F(ggml_backend_dev_t, ggml_backend_dev_by_type, (enum ggml_backend_dev_type type), (type))                                  \
    F(ggml_backend_t, ggml_backend_dev_init, (ggml_backend_dev_t dev, const char * params), (dev, params))                      \
    F(ggml_backend_reg_t, ggml_backend_dev_backend_reg, (ggml_backend_dev_t dev), (dev))                                        \
    F(void *, ggml_backend_reg_get_proc_address, (ggml_backend_reg_t reg, const char * name), (reg, name))                      \
    F(enum ggml_status, ggml_backend_graph_compute, (ggml_backend_t backend, struct ggml_cgraph * graph), (backend, graph))     \
    F(void, ggml_backend_free, (ggml_backend_t backend), (backend))

#define GGML_POINTER(result, name, parameters, arguments) static decltype(&name) at_##name;
GGML_FUNCTIONS(GGML_POINTER)

extern "C" {
#define GGML_FUNCTION(result, name, parameters, arguments) \
    result name parameters { return at_##name arguments; }
GGML_FUNCTIONS(GGML_FUNCTION)
}

namespace ice {

const char * find_ggml(const void * caller) {
    Dl_info info = {};
    // A library finds its own symbols and those of what it is linked with, however it was loaded. The program itself has no such name.
    void * library = dladdr(caller, &info) && info.dli_fname ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    const char * missing = nullptr;
    auto find = [&](const char * name) {
        void * at = library ? dlsym(library, name) : nullptr;
        at = at ? at : dlsym(RTLD_DEFAULT, name);
        missing = at || missing ? missing : name;
        return at;
    };
#define GGML_FIND(result, name, parameters, arguments) at_##name = reinterpret_cast<decltype(at_##name)>(find(#name));
    GGML_FUNCTIONS(GGML_FIND)
    return missing; // `library` is kept: it stays while the plugin does
}

} // namespace ice
