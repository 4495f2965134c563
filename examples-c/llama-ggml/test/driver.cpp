#include "driver.h"

#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>

namespace test {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<std::string> split(const std::string & text, char at) {
    std::vector<std::string> out;
    std::stringstream in(text);
    for (std::string part; std::getline(in, part, at);) {
        out.push_back(part);
    }
    return out;
}

std::string field(const std::string & line, const std::string & name) {
    const size_t at = line.find("\"" + name + "\": \"");
    std::string out;
    if (at == std::string::npos) {
        return out;
    }
    for (size_t i = at + name.size() + 5; i < line.size() && line[i] != '"'; i++) {
        if (line[i] == '\\' && ++i < line.size()) {
            out += line[i] == 'n' ? '\n' : line[i] == 't' ? '\t' : line[i];
        } else {
            out += line[i];
        }
    }
    return out;
}

std::vector<std::string> lines_of(const char * path) {
    std::ifstream in(path);
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) {
        out.push_back(line);
    }
    if (out.empty()) {
        fprintf(stderr, "%s: nothing to read\n", path);
        exit(1);
    }
    return out;
}

std::string text_of(const char * path) {
    std::ifstream in(path);
    std::stringstream all;
    all << in.rdbuf();
    return all.str();
}

llama_model * load_model(const char * path) {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_model * model = llama_model_load_from_file(path, llama_model_default_params());
    if (!model) {
        fprintf(stderr, "%s: no model\n", path);
        exit(1);
    }
    return model;
}

Tokens tokens_of(const llama_model * model, const std::string & text, bool begin) {
    const llama_vocab * vocab = llama_model_get_vocab(model);
    Tokens out(text.size() + 2);
    const int n = llama_tokenize(vocab, text.data(), int(text.size()), out.data(), int(out.size()), false, false);
    out.resize(size_t(std::max(n, 0)));
    if (begin) {
        out.insert(out.begin(), llama_vocab_bos(vocab));
    }
    return out;
}

std::string piece_of(const llama_model * model, llama_token token) {
    char piece[64];
    const int n = llama_token_to_piece(llama_model_get_vocab(model), token, piece, sizeof piece, 0, false);
    return std::string(piece, size_t(std::max(n, 0)));
}

int ubatch() { return getenv("BENCH_UBATCH") ? atoi(getenv("BENCH_UBATCH")) : 512; }
int threads_of() { return getenv("BENCH_THREADS") ? atoi(getenv("BENCH_THREADS")) : 2; }

Context context(llama_model * model, const std::string & mode, int room, int threads) {
    const std::vector<std::string> parts = split(mode, ':');
    setenv("ICE_MODE", parts[0] == "stock" ? "auto" : parts[0].c_str(), 1);
    setenv("ICE_TOLERANCE", parts.size() > 1 ? parts[1].c_str() : "0.05", 1);
    llama_context_params p = llama_context_default_params();
    p.n_ctx = uint32_t((room + 255) / 256 * 256);
    p.n_batch = p.n_ubatch = uint32_t(ubatch());
    p.n_threads = p.n_threads_batch = threads;
    p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    if (const char * yarn = getenv("BENCH_YARN")) {
        // Asked once: a context with YaRN makes the model say a longer one, and the next context would take that for its training.
        static const int trained = llama_model_n_ctx_train(model);
        p.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_YARN;
        p.rope_freq_scale = float(1 / atof(yarn));
        p.yarn_orig_ctx = uint32_t(trained);
    }
    Context ctx(llama_init_from_model(model, p), llama_free);
    if (!ctx) {
        fprintf(stderr, "no context\n");
        exit(1);
    }
    return ctx;
}

size_t feed_some(llama_context * ctx, const Tokens & tokens, size_t at, bool all_logits) {
    const size_t n = std::min(size_t(ubatch()), tokens.size() - at);
    llama_batch batch = llama_batch_init(int(n), 0, 1);
    const int begin = llama_memory_seq_pos_max(llama_get_memory(ctx), 0) + 1;
    for (size_t i = 0; i < n; i++) {
        batch.token[i] = tokens[at + i];
        batch.pos[i] = begin + int(i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = all_logits || at + i + 1 == tokens.size();
    }
    batch.n_tokens = int(n);
    const int status = llama_decode(ctx, batch);
    llama_batch_free(batch);
    if (status != 0) {
        fprintf(stderr, "llama_decode failed\n");
        exit(1);
    }
    return n;
}

} // namespace test
