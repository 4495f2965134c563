#include "tiny_model.h"

#include "ggml-cpp.h"
#include "gguf.h"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

namespace test {

void write_tiny_model(const char * path) {
    const uint32_t width = 256, inner = 256, heads = 4, heads_kv = 2, layers = 3, vocab = 512;
    gguf_context_ptr file(gguf_init_empty());
    gguf_set_val_str(file.get(), "general.architecture", "llama");
    gguf_set_val_str(file.get(), "general.name", "random");
    gguf_set_val_u32(file.get(), "llama.context_length", 32768);
    gguf_set_val_u32(file.get(), "llama.embedding_length", width);
    gguf_set_val_u32(file.get(), "llama.feed_forward_length", inner);
    gguf_set_val_u32(file.get(), "llama.block_count", layers);
    gguf_set_val_u32(file.get(), "llama.attention.head_count", heads);
    gguf_set_val_u32(file.get(), "llama.attention.head_count_kv", heads_kv);
    gguf_set_val_u32(file.get(), "llama.rope.dimension_count", width / heads);
    gguf_set_val_f32(file.get(), "llama.rope.freq_base", 500000.0f);
    gguf_set_val_f32(file.get(), "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_set_val_u32(file.get(), "llama.vocab_size", vocab);
    gguf_set_val_str(file.get(), "tokenizer.ggml.model", "no_vocab");

    ggml_context_ptr ctx(ggml_init({size_t(32) << 20, nullptr, false}));
    std::mt19937 rng(7);
    std::normal_distribution<float> gauss;
    auto tensor = [&](const std::string & name, int64_t cols, int64_t rows, float size, float mean) {
        ggml_tensor * t = rows ? ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, cols, rows) : ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, cols);
        ggml_set_name(t, name.c_str());
        for (int64_t i = 0; i < ggml_nelements(t); i++) {
            static_cast<float *>(t->data)[i] = mean + size * gauss(rng);
        }
        gguf_add_tensor(file.get(), t);
    };
    tensor("token_embd.weight", width, vocab, 1.0f, 0);
    tensor("output_norm.weight", width, 0, 0.1f, 1);
    tensor("output.weight", width, vocab, 0.1f, 0);
    for (uint32_t l = 0; l < layers; l++) {
        const std::string at = "blk." + std::to_string(l) + ".";
        tensor(at + "attn_norm.weight", width, 0, 0.1f, 1);
        // Queries and keys large enough that attention is not the same everywhere.
        tensor(at + "attn_q.weight", width, width, 0.1f, 0);
        tensor(at + "attn_k.weight", width, width / heads * heads_kv, 0.1f, 0);
        tensor(at + "attn_v.weight", width, width / heads * heads_kv, 0.09f, 0);
        tensor(at + "attn_output.weight", width, width, 0.09f, 0);
        tensor(at + "ffn_norm.weight", width, 0, 0.1f, 1);
        tensor(at + "ffn_gate.weight", width, inner, 0.09f, 0);
        tensor(at + "ffn_up.weight", width, inner, 0.09f, 0);
        tensor(at + "ffn_down.weight", inner, width, 0.06f, 0);
    }
    if (!gguf_write_to_file(file.get(), path, false)) {
        fprintf(stderr, "cannot write %s\n", path);
        exit(1);
    }
}

} // namespace test
