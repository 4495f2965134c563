// Time and accuracy of a real model in the stock host, attention by the host itself and by the plugin.
//
//   bench time <libraries> <plugin or -> <model> <prompts.jsonl or text> <modes> <lengths> <threads>   e.g. host,exact,auto 4096,8192 1
//   bench lines <libraries> <plugin or -> <model> <prompts.jsonl> <modes> <count>
//   bench perplexity <libraries> <plugin or -> <model> <text> <modes> <tokens>
//
// "host" hands every attention back to the host's CPU backend through the plugin, so that one clock times both; "stock",
// with "-" for the plugin, is the host alone. A mode may carry a tolerance: auto:0.02. In the environment: BENCH_THREADS
// (2) of the last two, BENCH_STEPS (32) to decode, BENCH_UBATCH (512) tokens at a time.

#include "driver.h"
#include "host.h"

#include "../src/iceformer-ggml-stats.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using namespace test;

llama_model * model;
void (*read_stats)(iceformer_ggml_stats *, bool);

int time_table(const char * prompts, const std::vector<std::string> & modes, const std::vector<std::string> & lengths, int threads) {
    std::string all;
    if (const std::string name = prompts; name.size() > 6 && name.compare(name.size() - 6, 6, ".jsonl") == 0) {
        for (const std::string & line : lines_of(prompts)) {
            all += field(line, "prompt") + "\n\n";
        }
    } else {
        all = text_of(prompts);
    }
    const Tokens text = tokens_of(model, all, true);
    const int layers = llama_model_n_layer(model);
    printf("| tokens | threads | mode | whole prompt s | of it attention | attention ms a layer | ratio | fingerprints ms | appending ms | masks ms | decode step ms | tokens a second | attention of a step, ms a layer | of it fingerprints | ratio | pairs scored | measured error |\n");
    printf("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (const std::string & length : lengths) {
        const size_t n = size_t(std::max(1, atoi(length.c_str())));
        if (text.size() < n + 2000) {
            fprintf(stderr, "%s holds %zu tokens\n", prompts, text.size());
            return 1;
        }
        double first = 0, first_step = 0;
        for (const std::string & mode : modes) {
            Context ctx = context(model, mode, int(n) + 2048, threads);
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
            char error[32] = "-";
            if (s.rows_measured > 0) {
                snprintf(error, sizeof error, "%.1f %%", 100 * std::sqrt(s.squares_measured / double(s.rows_measured)));
            }
            printf("| %zu | %d | %s | %.2f | %.0f %% | %.1f | %.2f | %.1f | %.1f | %.1f | %.2f | %.1f | %.3f | %.3f | %.2f | %.1f %% | %s |\n", n, threads, mode.c_str(), prompt, 100 * s.attend_seconds / prompt, a, first / a,
                   1e3 * s.check_seconds / layers, 1e3 * s.append_seconds / layers, 1e3 * s.mask_seconds / layers, 1e3 * step[step.size() / 2], 1 / step[step.size() / 2], b, 1e3 * d.check_seconds / layers / steps,
                   first_step / b, s.pairs_dense ? 100.0 * double(s.pairs) / double(s.pairs_dense) : 100.0, error);
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
        const Tokens prompt = tokens_of(model, field(line, "prompt"), true);
        longest = std::max(longest, prompt.size());
        std::vector<std::string> said;
        for (size_t m = 0; m < modes.size(); m++) {
            Context ctx = context(model, modes[m], int(prompt.size()) + 32, threads_of());
            const double begin = now();
            llama_token next = 0;
            auto best = [&](size_t, const float * logits) { next = llama_token(std::max_element(logits, logits + llama_vocab_n_tokens(vocab)) - logits); };
            feed(ctx.get(), prompt, false, best);
            std::string text;
            for (int i = 0; i < 12; i++) {
                text += piece_of(model, next);
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
    Tokens text = tokens_of(model, text_of(path), true);
    if (int(text.size()) < tokens) {
        fprintf(stderr, "%s holds %zu tokens\n", path, text.size());
        return 1;
    }
    text.resize(size_t(tokens));
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    double first = 0;
    for (const std::string & mode : modes) {
        Context ctx = context(model, mode, tokens, threads_of());
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
    model = load_model(argv[4]);
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
