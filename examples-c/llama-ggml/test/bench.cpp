// Time and accuracy of a real model in the stock host, attention by the host itself and by the plugin.
//
//   bench time <libraries> <plugin or -> <model> <prompts.jsonl> <modes> <lengths> <threads>   e.g. host,exact,auto 4096,8192 1
//   bench lines <libraries> <plugin or -> <model> <prompts.jsonl> <modes> <count>
//   bench perplexity <libraries> <plugin or -> <model> <text> <modes> <tokens>
//
// "host" hands every attention back to the host's CPU backend through the plugin, so that one clock times both; "stock",
// with "-" for the plugin, is the host alone. A mode may carry a tolerance: auto:0.02. In the environment: BENCH_THREADS
// (2) of the last two, BENCH_STEPS (32) to decode, BENCH_UBATCH (512) tokens at a time.

#include "host.h"

#include "../src/iceformer-ggml-stats.h"
#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Tokens = std::vector<llama_token>;
using Context = std::unique_ptr<llama_context, void (*)(llama_context *)>;

llama_model * model;
void (*read_stats)(iceformer_ggml_stats *, bool);

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<std::string> split(const std::string & text, char at) {
    std::vector<std::string> out;
    std::stringstream in(text);
    for (std::string part; std::getline(in, part, at);) {
        out.push_back(part);
    }
    return out;
}

// Value of a string field of one line of JSON.
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

Tokens tokens_of(const std::string & text, bool begin) {
    const llama_vocab * vocab = llama_model_get_vocab(model);
    Tokens out(text.size() + 2);
    const int n = llama_tokenize(vocab, text.data(), int(text.size()), out.data(), int(out.size()), false, false);
    out.resize(size_t(std::max(n, 0)));
    if (begin) {
        out.insert(out.begin(), llama_vocab_bos(vocab));
    }
    return out;
}

int ubatch() { return getenv("BENCH_UBATCH") ? atoi(getenv("BENCH_UBATCH")) : 512; }
int threads_of() { return getenv("BENCH_THREADS") ? atoi(getenv("BENCH_THREADS")) : 2; }

Context context(const std::string & mode, int room, int threads) {
    const std::vector<std::string> parts = split(mode, ':');
    setenv("ICE_MODE", parts[0] == "stock" ? "auto" : parts[0].c_str(), 1);
    setenv("ICE_TOLERANCE", parts.size() > 1 ? parts[1].c_str() : "0.05", 1);
    llama_context_params p = llama_context_default_params();
    p.n_ctx = uint32_t((room + 255) / 256 * 256);
    p.n_batch = p.n_ubatch = uint32_t(ubatch());
    p.n_threads = p.n_threads_batch = threads;
    p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    Context ctx(llama_init_from_model(model, p), llama_free);
    if (!ctx) {
        fprintf(stderr, "no context\n");
        exit(1);
    }
    return ctx;
}

// Runs tokens; `each` gets the logits of token i.
template <typename F> void feed(llama_context * ctx, const Tokens & tokens, bool all_logits, F each) {
    for (size_t at = 0; at < tokens.size();) {
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
        if (llama_decode(ctx, batch) != 0) {
            fprintf(stderr, "llama_decode failed\n");
            exit(1);
        }
        for (size_t i = 0; i < n; i++) {
            if (batch.logits[i]) {
                each(at + i, llama_get_logits_ith(ctx, int(i)));
            }
        }
        llama_batch_free(batch);
        at += n;
    }
}

int time_table(const char * prompts, const std::vector<std::string> & modes, const std::vector<std::string> & lengths, int threads) {
    std::string all;
    for (const std::string & line : lines_of(prompts)) {
        all += field(line, "prompt") + "\n\n";
    }
    const Tokens text = tokens_of(all, true);
    const int layers = llama_model_n_layer(model);
    printf("| tokens | threads | mode | whole prompt s | attention ms a layer | ratio | fingerprints ms | appending ms | masks ms | decode step ms | attention of a step, ms a layer | of it fingerprints | ratio | pairs scored |\n");
    printf("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (const std::string & length : lengths) {
        const size_t n = size_t(std::max(1, atoi(length.c_str())));
        if (text.size() < n + 2000) {
            fprintf(stderr, "%s holds %zu tokens\n", prompts, text.size());
            return 1;
        }
        double first = 0, first_step = 0;
        for (const std::string & mode : modes) {
            Context ctx = context(mode, int(n) + 2048, threads);
            iceformer_ggml_stats s = {}, d = {};
            auto read = [&](iceformer_ggml_stats & to) {
                if (read_stats) {
                    read_stats(&to, true);
                }
            };
            read(s);
            const double begin = now();
            feed(ctx.get(), Tokens(text.begin(), text.begin() + std::ptrdiff_t(n)), false, [](size_t, const float *) {});
            const double prompt = now() - begin;
            read(s);
            const int steps = getenv("BENCH_STEPS") ? atoi(getenv("BENCH_STEPS")) : 32;
            std::vector<double> step;
            for (int i = 0; i < steps; i++) {
                const double at = now();
                feed(ctx.get(), Tokens{text[n + size_t(i)]}, false, [](size_t, const float *) {});
                step.push_back(now() - at);
            }
            std::sort(step.begin(), step.end());
            read(d);
            const double a = 1e3 * s.attend_seconds / layers, b = 1e3 * d.attend_seconds / layers / steps;
            if (first == 0) {
                first = a;
                first_step = b;
            }
            printf("| %zu | %d | %s | %.2f | %.1f | %.2f | %.1f | %.1f | %.1f | %.2f | %.3f | %.3f | %.2f | %.1f %% |\n", n, threads, mode.c_str(), prompt, a, first / a,
                   1e3 * s.check_seconds / layers, 1e3 * s.append_seconds / layers, 1e3 * s.mask_seconds / layers, 1e3 * step[step.size() / 2], b, 1e3 * d.check_seconds / layers / steps,
                   first_step / b, s.pairs_dense ? 100.0 * double(s.pairs) / double(s.pairs_dense) : 100.0);
            fflush(stdout);
        }
    }
    return 0;
}

int lines_table(const char * prompts, const std::vector<std::string> & modes, int count) {
    const llama_vocab * vocab = llama_model_get_vocab(model);
    std::vector<std::string> lines = lines_of(prompts);
    if (int(lines.size()) > count) { // spread over the file
        std::vector<std::string> some;
        for (int i = 0; i < count; i++) {
            some.push_back(lines[size_t(i) * lines.size() / size_t(count)]);
        }
        lines = some;
    }
    std::vector<int> right(modes.size(), 0);
    std::vector<double> seconds(modes.size(), 0);
    int same = 0;
    size_t longest = 0;
    for (const std::string & line : lines) {
        const Tokens prompt = tokens_of(field(line, "prompt"), true);
        longest = std::max(longest, prompt.size());
        std::vector<std::string> said;
        for (size_t m = 0; m < modes.size(); m++) {
            Context ctx = context(modes[m], int(prompt.size()) + 32, threads_of());
            const double begin = now();
            llama_token next = 0;
            auto best = [&](size_t, const float * logits) { next = llama_token(std::max_element(logits, logits + llama_vocab_n_tokens(vocab)) - logits); };
            feed(ctx.get(), prompt, false, best);
            std::string text;
            for (int i = 0; i < 12; i++) {
                char piece[64];
                const int n = llama_token_to_piece(vocab, next, piece, sizeof piece, 0, false);
                text.append(piece, size_t(std::max(n, 0)));
                feed(ctx.get(), Tokens{next}, false, best);
            }
            seconds[m] += now() - begin;
            right[m] += text.find(field(line, "answer")) != std::string::npos;
            said.push_back(text.substr(0, text.find('>')));
        }
        same += std::all_of(said.begin(), said.end(), [&](const std::string & t) { return t == said[0]; });
    }
    for (size_t m = 0; m < modes.size(); m++) {
        printf("| %zu | %s | %d of %zu | %.1f |\n", longest, modes[m].c_str(), right[m], lines.size(), seconds[m]);
    }
    printf("same answers: %d of %zu\n", same, lines.size());
    return 0;
}

int perplexity(const char * path, const std::vector<std::string> & modes, int tokens) {
    std::ifstream in(path);
    std::stringstream all;
    all << in.rdbuf();
    Tokens text = tokens_of(all.str(), true);
    if (int(text.size()) < tokens) {
        fprintf(stderr, "%s holds %zu tokens\n", path, text.size());
        return 1;
    }
    text.resize(size_t(tokens));
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    double first = 0;
    for (const std::string & mode : modes) {
        Context ctx = context(mode, tokens, threads_of());
        double sum = 0;
        feed(ctx.get(), text, true, [&](size_t i, const float * logits) {
            if (i + 1 < text.size()) {
                const float most = *std::max_element(logits, logits + vocab);
                double total = 0;
                for (int t = 0; t < vocab; t++) {
                    total += std::exp(double(logits[t] - most));
                }
                sum += std::log(total) + double(most) - double(logits[text[i + 1]]);
            }
        });
        const double ppl = std::exp(sum / double(tokens - 1));
        first = first == 0 ? ppl : first;
        printf("| %d | %s | %.4f | %+.2f %% |\n", tokens, mode.c_str(), ppl, 100 * (ppl / first - 1));
        fflush(stdout);
    }
    return 0;
}

} // namespace

int main(int argc, char ** argv) {
    if (argc < 8) {
        fprintf(stderr, "see the head of bench.cpp\n");
        return 2;
    }
    test::load(argv[2], argv[3]);
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    model = llama_model_load_from_file(argv[4], llama_model_default_params());
    if (!model) {
        fprintf(stderr, "%s: no model\n", argv[4]);
        return 1;
    }
    if (ggml_backend_reg_t reg = ggml_backend_reg_by_name("iceformer")) {
        read_stats = reinterpret_cast<decltype(read_stats)>(ggml_backend_reg_get_proc_address(reg, "iceformer_stats"));
    }
    const std::vector<std::string> modes = split(argv[6], ',');
    int status = 2;
    if (strcmp(argv[1], "time") == 0 && argc == 9) {
        status = time_table(argv[5], modes, split(argv[7], ','), atoi(argv[8]));
    } else if (strcmp(argv[1], "lines") == 0) {
        status = lines_table(argv[5], modes, atoi(argv[7]));
    } else if (strcmp(argv[1], "perplexity") == 0) {
        status = perplexity(argv[5], modes, atoi(argv[7]));
    }
    llama_model_free(model);
    return status;
}
