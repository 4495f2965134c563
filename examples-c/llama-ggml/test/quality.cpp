// What a model makes of attention in the stock host: every mode side by side against the first, one line of JSON a result.
//
//   quality perplexity <libraries> <plugin> <model> <text> <modes> <tokens>
//   quality needles    <libraries> <plugin> <model> <prompts.jsonl> <modes> <tokens to write>
//   quality greedy     <libraries> <plugin> <model> <text> <modes> <tokens> <prompts> <tokens to write>
//
// Prompts have "prompt" and "answer", the parts of an answer parted by "|": right where all of them are written. Modes and the
// environment are those of bench.cpp.

#include "driver.h"
#include "host.h"

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
int vocab;

llama_token largest(const float * logits) { return llama_token(std::max_element(logits, logits + vocab) - logits); }

// Logarithms of the probabilities of the next token.
void log_softmax(const float * logits, std::vector<double> & out) {
    const float most = logits[largest(logits)];
    double sum = 0;
    for (int t = 0; t < vocab; t++) {
        sum += std::exp(double(logits[t] - most));
    }
    const double log_sum = std::log(sum) + double(most);
    for (int t = 0; t < vocab; t++) {
        out[size_t(t)] = double(logits[t]) - log_sum;
    }
}

// All contexts get the same tokens, batch by batch, so that nothing but one batch of logits is kept.
int perplexity(const char * path, const std::vector<std::string> & modes, int tokens) {
    Tokens text = tokens_of(model, text_of(path), true);
    if (int(text.size()) < tokens) {
        fprintf(stderr, "%s holds %zu tokens, %d are asked for\n", path, text.size(), tokens);
        return 1;
    }
    text.resize(size_t(tokens));
    std::vector<Context> contexts;
    for (const std::string & mode : modes) {
        contexts.push_back(context(model, mode, tokens, threads_of()));
    }
    const size_t n = modes.size();
    std::vector<double> nats(n), late(n), divergence(n), seconds(n);
    std::vector<size_t> same(n);
    std::vector<double> first, other;
    first.resize(size_t(vocab));
    other.resize(size_t(vocab));
    size_t counted = 0, counted_late = 0;
    for (size_t at = 0, step; at < text.size(); at += step) {
        step = 0;
        for (size_t m = 0; m < n; m++) {
            const double begin = now();
            step = feed_some(contexts[m].get(), text, at, true);
            llama_synchronize(contexts[m].get());
            seconds[m] += now() - begin;
        }
        for (size_t i = 0; i < step && at + i + 1 < text.size(); i++) {
            const size_t next = size_t(text[at + i + 1]);
            const bool is_late = 2 * (at + i) >= text.size();
            for (size_t m = 0; m < n; m++) {
                const float * logits = llama_get_logits_ith(contexts[m].get(), int(i));
                std::vector<double> & logs = m == 0 ? first : other;
                log_softmax(logits, logs);
                nats[m] -= logs[next];
                late[m] -= is_late ? logs[next] : 0;
                if (m > 0) {
                    double sum = 0;
                    for (int t = 0; t < vocab; t++) {
                        sum += std::exp(first[size_t(t)]) * (first[size_t(t)] - other[size_t(t)]);
                    }
                    divergence[m] += sum;
                    same[m] += largest(logits) == largest(llama_get_logits_ith(contexts[0].get(), int(i)));
                } else {
                    same[m]++;
                }
            }
            counted++;
            counted_late += is_late;
        }
        fprintf(stderr, "%zu of %zu tokens\n", at + step, text.size());
    }
    const double all = double(std::max<size_t>(counted, 1)), half = double(std::max<size_t>(counted_late, 1));
    for (size_t m = 0; m < n; m++) {
        printf("{\"mode\": \"%s\", \"perplexity\": %.5f, \"second_half\": %.5f, \"kl\": %.6f, \"same\": %.5f, \"seconds\": %.2f}\n",
               modes[m].c_str(), std::exp(nats[m] / all), std::exp(late[m] / half), divergence[m] / all, double(same[m]) / all, seconds[m]);
    }
    return 0;
}

// Greedy tokens after a prompt.
Tokens write(const std::string & mode, const Tokens & prompt, int steps) {
    Context ctx = context(model, mode, int(prompt.size()) + steps + 1, threads_of());
    Tokens out;
    auto take = [&](size_t, const float * logits) { out.push_back(largest(logits)); };
    feed(ctx.get(), prompt, false, take);
    while (int(out.size()) < steps) {
        feed(ctx.get(), Tokens{out.back()}, false, take);
    }
    return out;
}

int needles(const char * path, const std::vector<std::string> & modes, int steps) {
    for (const std::string & line : lines_of(path)) {
        const Tokens prompt = tokens_of(model, field(line, "prompt"), true);
        const std::vector<std::string> parts = split(field(line, "answer"), '|');
        printf("{\"tokens\": %zu", prompt.size());
        for (const std::string & mode : modes) {
            std::string text;
            for (const llama_token token : write(mode, prompt, steps)) {
                text += piece_of(model, token);
            }
            const bool right = std::all_of(parts.begin(), parts.end(), [&](const std::string & p) { return text.find(p) != std::string::npos; });
            printf(", \"%s\": %d", mode.c_str(), int(right));
        }
        printf("}\n");
        fflush(stdout);
    }
    return 0;
}

// Prompts follow one another in the text; how many tokens each mode writes before it departs from the first.
int greedy(const char * path, const std::vector<std::string> & modes, int tokens, int prompts, int steps) {
    const Tokens text = tokens_of(model, text_of(path), true);
    const size_t most = text.size() < size_t(tokens) ? 0 : text.size() - size_t(tokens);
    if (most == 0) {
        fprintf(stderr, "%s holds %zu tokens, more than %d are asked for\n", path, text.size(), tokens);
        return 1;
    }
    for (int p = 0; p < prompts; p++) {
        const auto begin = text.begin() + std::ptrdiff_t(most * size_t(p) / size_t(prompts));
        const Tokens prompt(begin, begin + tokens);
        Tokens host;
        printf("{\"prompt\": %d", p);
        for (size_t m = 0; m < modes.size(); m++) {
            const Tokens own = write(modes[m], prompt, steps);
            host = m == 0 ? own : host;
            const auto at = std::mismatch(own.begin(), own.end(), host.begin()).first;
            printf(", \"%s\": %d", modes[m].c_str(), int(at - own.begin()));
        }
        printf("}\n");
        fflush(stdout);
    }
    return 0;
}

} // namespace

int main(int argc, char ** argv) {
    if (argc < 8) {
        fprintf(stderr, "see the head of quality.cpp\n");
        return 2;
    }
    test::load(argv[2], argv[3]);
    model = load_model(argv[4]);
    vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const std::vector<std::string> modes = split(argv[6], ',');
    int status = 2;
    if (strcmp(argv[1], "perplexity") == 0) {
        status = perplexity(argv[5], modes, atoi(argv[7]));
    } else if (strcmp(argv[1], "needles") == 0) {
        status = needles(argv[5], modes, atoi(argv[7]));
    } else if (strcmp(argv[1], "greedy") == 0 && argc == 10) {
        status = greedy(argv[5], modes, atoi(argv[7]), atoi(argv[8]), atoi(argv[9]));
    }
    llama_model_free(model);
    return status;
}
