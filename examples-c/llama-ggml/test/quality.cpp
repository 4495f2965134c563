// What a model makes of attention in the stock host: every mode side by side against the first, one line of JSON a result.
//
//   quality perplexity <libraries> <plugin> <model> <text> <modes> <tokens>
//   quality needles    <libraries> <plugin> <model> <prompts.jsonl> <modes> <tokens to write>
//   quality greedy     <libraries> <plugin> <model> <text> <modes> <tokens> <number> <prompts> <tokens to write>
//
// A prompt has "prompt", the text; "questions" and "answers", parted by "|": right where it is written before the end of
// the sentence. Modes and the environment are those of bench.cpp.

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

// Runs a prompt. The plugin attends exactly while a batch sees fewer than 2,048 tokens, in auto mode, too. So its modes after the
// first take the state that the first one had there, by the host's own calls. BENCH_WHOLE: they do not.
constexpr size_t EXACT_BELOW = 2048;

template <typename F> void feed_prompt(llama_context * ctx, const std::string & mode, const Tokens & prompt, std::vector<uint8_t> & state, F each) {
    const bool shares = (mode == "exact" || mode.rfind("auto", 0) == 0) && !getenv("BENCH_WHOLE");
    const size_t before = (EXACT_BELOW - 1) / size_t(ubatch()) * size_t(ubatch());
    if (!shares || prompt.size() <= before) {
        feed(ctx, prompt, false, each);
        return;
    }
    const auto middle = prompt.begin() + std::ptrdiff_t(before);
    if (state.empty()) {
        feed(ctx, Tokens(prompt.begin(), middle), false, [](size_t, const float *) {});
        state.resize(llama_state_seq_get_size(ctx, 0));
        state.resize(llama_state_seq_get_data(ctx, state.data(), state.size(), 0));
    } else if (llama_state_seq_set_data(ctx, state.data(), state.size(), 0) == 0) {
        fprintf(stderr, "the host takes no state\n");
        exit(1);
    }
    feed(ctx, Tokens(middle, prompt.end()), false, each);
}

// What is written to every question after a text, until its answer is there or the sentence ends. Questions share the text: what
// one of them added is removed before the next.
std::vector<std::string> answers(const std::string & mode, const Tokens & text, const std::vector<std::string> & questions,
                                 const std::vector<std::string> & wanted, int steps, std::vector<uint8_t> & state) {
    constexpr int QUESTION = 256; // tokens of room
    Context ctx = context(model, mode, int(text.size()) + QUESTION + steps, threads_of());
    feed_prompt(ctx.get(), mode, text, state, [](size_t, const float *) {});
    std::vector<std::string> out;
    for (size_t q = 0; q < questions.size(); q++) {
        std::string said;
        llama_token next = 0;
        auto take = [&](size_t, const float * logits) { next = largest(logits); };
        feed(ctx.get(), tokens_of(model, questions[q], false), false, take);
        for (int i = 0; i < steps; i++) {
            said += piece_of(model, next);
            if (said.find_first_of(".\n") != std::string::npos || said.find(wanted[q]) != std::string::npos) {
                break;
            }
            feed(ctx.get(), Tokens{next}, false, take);
        }
        llama_memory_seq_rm(llama_get_memory(ctx.get()), 0, llama_pos(text.size()), -1);
        out.push_back(said.substr(0, said.find_first_of(".\n")));
    }
    return out;
}

int needles(const char * path, const std::vector<std::string> & modes, int steps) {
    for (const std::string & line : lines_of(path)) {
        const Tokens text = tokens_of(model, field(line, "prompt"), true);
        const std::vector<std::string> questions = split(field(line, "questions"), '|'), wanted = split(field(line, "answers"), '|');
        std::vector<uint8_t> state;
        printf("{\"tokens\": %zu", text.size());
        for (const std::string & mode : modes) {
            const double begin = now();
            const std::vector<std::string> said = answers(mode, text, questions, wanted, steps, state);
            printf(", \"%s\": [", mode.c_str());
            for (size_t i = 0; i < said.size(); i++) {
                printf("%s%d", i ? ", " : "", int(said[i].find(wanted[i]) != std::string::npos));
                fprintf(stderr, "%s: wanted %s, said%s\n", mode.c_str(), wanted[i].c_str(), said[i].c_str());
            }
            printf("]");
            fprintf(stderr, "%s: %.1f s\n", mode.c_str(), now() - begin);
        }
        printf("}\n");
        fflush(stdout);
    }
    return 0;
}

// Tokens and, for each, how much likelier the likeliest was than the second, in nats.
struct Written {
    Tokens tokens;
    std::vector<double> lead;
};

Written write(const std::string & mode, const Tokens & prompt, int steps, std::vector<uint8_t> & state) {
    Context ctx = context(model, mode, int(prompt.size()) + steps + 1, threads_of());
    Written out;
    auto take = [&](size_t, const float * logits) {
        const llama_token best = largest(logits);
        float second = -INFINITY;
        for (int t = 0; t < vocab; t++) {
            second = t == best ? second : std::max(second, logits[t]);
        }
        out.tokens.push_back(best);
        out.lead.push_back(double(logits[best] - second));
    };
    feed_prompt(ctx.get(), mode, prompt, state, take);
    while (int(out.tokens.size()) < steps) {
        feed(ctx.get(), Tokens{out.tokens.back()}, false, take);
    }
    return out;
}

// How many tokens each mode writes before it departs from the first mode, and the first mode's lead there. Prompt `number` of
// `prompts` that follow one another in the text.
int greedy(const char * path, const std::vector<std::string> & modes, int tokens, int number, int prompts, int steps) {
    const Tokens text = tokens_of(model, text_of(path), true);
    const size_t most = text.size() < size_t(tokens) ? 0 : text.size() - size_t(tokens);
    if (most == 0) {
        fprintf(stderr, "%s holds %zu tokens, more than %d are asked for\n", path, text.size(), tokens);
        return 1;
    }
    const auto begin = text.begin() + std::ptrdiff_t(most * size_t(number) / size_t(prompts));
    const Tokens prompt(begin, begin + tokens);
    Written first;
    std::vector<uint8_t> state;
    printf("{\"prompt\": %d", number);
    for (size_t m = 0; m < modes.size(); m++) {
        const Written own = write(modes[m], prompt, steps, state);
        first = m == 0 ? own : first;
        const size_t at = size_t(std::mismatch(own.tokens.begin(), own.tokens.end(), first.tokens.begin()).first - own.tokens.begin());
        printf(", \"%s\": [%zu, %.4f]", modes[m].c_str(), at, at < first.lead.size() ? first.lead[at] : 0.0);
    }
    printf("}\n");
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
    } else if (strcmp(argv[1], "greedy") == 0 && argc == 11) {
        status = greedy(argv[5], modes, atoi(argv[7]), atoi(argv[8]), atoi(argv[9]), atoi(argv[10]));
    }
    llama_model_free(model);
    return status;
}
