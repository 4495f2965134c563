// A model of the stock host in a test: text to tokens, contexts by mode, tokens through a context.
#pragma once

#include "llama.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace test {

using Tokens = std::vector<llama_token>;
using Context = std::unique_ptr<llama_context, void (*)(llama_context *)>;

double now(); // seconds
std::vector<std::string> split(const std::string & text, char at);
// Value of a string field of one line of JSON; empty where there is none.
std::string field(const std::string & line, const std::string & name);
// Ends the program where there are none.
std::vector<std::string> lines_of(const char * path);
std::string text_of(const char * path);

// Ends the program with a message if the file is no model.
llama_model * load_model(const char * path);
Tokens tokens_of(const llama_model * model, const std::string & text, bool begin);
std::string piece_of(const llama_model * model, llama_token token);

// In the environment: BENCH_UBATCH (512) tokens at a time, BENCH_THREADS (2), BENCH_YARN: contexts so many times longer than
// those of the training.
int ubatch();
int threads_of();

// A mode is "stock" or one of ICE_MODE, with or without a tolerance: "auto:0.02".
Context context(llama_model * model, const std::string & mode, int room, int threads);

// Runs up to ubatch() tokens from `at` on; ends the program where the host fails. Number of tokens.
size_t feed_some(llama_context * ctx, const Tokens & tokens, size_t at, bool all_logits);

// Runs tokens; `each` gets the logits of token i.
template <typename F> void feed(llama_context * ctx, const Tokens & tokens, bool all_logits, F each) {
    for (size_t at = 0, n; at < tokens.size(); at += n) {
        n = feed_some(ctx, tokens, at, all_logits);
        for (size_t i = 0; i < n; i++) {
            if (all_logits || at + i + 1 == tokens.size()) {
                each(at + i, llama_get_logits_ith(ctx, int(i)));
            }
        }
    }
}

} // namespace test
