// Everything that libllama does to a key cache: the logits after each step, with and without the plugin.
//
//   memory_test model <file>                                          writes a random model
//   memory_test run <folder of the stock libraries> <plugin or -> <model> <out> [length]
//   memory_test compare <stock> <plugin's> <most>                     relative error of each step's logits
//   memory_test auto <folder of the stock libraries> <plugin> <model>  a context whose flash attention is on "auto"
//
// Two processes are compared, so that the stock one has never heard of the plugin.

#include "host.h"
#include "tiny_model.h"

#include "../src/iceformer-ggml-stats.h"
#include "llama.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

using Tokens = std::vector<llama_token>;

// Phrases that come again and again, as in text: attention finds something to look at.
Tokens text(int n, unsigned seed, int vocab) {
    std::mt19937 rng(seed);
    std::vector<Tokens> phrases(40);
    for (Tokens & p : phrases) {
        for (unsigned i = 0; i < 3 + rng() % 6; i++) {
            p.push_back(llama_token(10 + rng() % unsigned(vocab - 10)));
        }
    }
    Tokens out;
    while (int(out.size()) < n) {
        const Tokens & p = phrases[rng() % phrases.size()];
        out.insert(out.end(), p.begin(), p.end());
        out.push_back(llama_token(10 + rng() % unsigned(vocab - 10)));
    }
    out.resize(size_t(n));
    return out;
}

struct Output {
    FILE * file;
    int vocab;
    void step(const std::string & name, const float * logits) {
        const uint32_t n = uint32_t(name.size());
        fwrite(&n, 4, 1, file);
        fwrite(name.data(), 1, n, file);
        const uint32_t v = uint32_t(vocab);
        fwrite(&v, 4, 1, file);
        fwrite(logits, 4, v, file);
    }
};

struct Config {
    const char * name;
    int context, ubatch, sequences;
    bool unified;
    ggml_type type;
};

// A context and what is done to it. Positions are counted here, as a program would.
struct Session {
    Output & out;
    std::string name;
    std::unique_ptr<llama_context, void (*)(llama_context *)> ctx{nullptr, llama_free};
    std::vector<int> at; // next position by sequence

    Session(Output & o, llama_model * model, const Config & c) : out(o), name(c.name) {
        llama_context_params p = llama_context_default_params();
        p.n_ctx = uint32_t(c.context);
        p.n_batch = uint32_t(c.ubatch);
        p.n_ubatch = uint32_t(c.ubatch);
        p.n_seq_max = uint32_t(c.sequences);
        p.kv_unified = c.unified;
        p.type_k = p.type_v = c.type;
        p.n_threads = p.n_threads_batch = 1; // the plugin's are set by ICE_THREADS: the host's wait in busy loops
        p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
        ctx.reset(llama_init_from_model(model, p));
        if (!ctx) {
            fprintf(stderr, "%s: no context\n", c.name);
            exit(1);
        }
        at.assign(size_t(c.sequences), 0);
    }
    llama_memory_t memory() { return llama_get_memory(ctx.get()); }

    // Several sequences side by side: sequence s gets texts[s]; the logits of every last token are written.
    void feed(const std::string & step, const std::vector<Tokens> & texts) {
        const int most = int(llama_n_batch(ctx.get()));
        int total = 0;
        for (const Tokens & t : texts) {
            total += int(t.size());
        }
        llama_batch batch = llama_batch_init(most, 0, 1);
        std::vector<size_t> done(texts.size(), 0);
        std::vector<std::pair<int, size_t>> wanted; // place in the batch, sequence
        auto flush = [&] {
            if (batch.n_tokens == 0) {
                return;
            }
            if (llama_decode(ctx.get(), batch) != 0) {
                fprintf(stderr, "%s: %s: llama_decode failed\n", name.c_str(), step.c_str());
                exit(1);
            }
            for (const auto & w : wanted) {
                out.step(name + ": " + step + " #" + std::to_string(w.second), llama_get_logits_ith(ctx.get(), w.first));
            }
            wanted.clear();
            batch.n_tokens = 0;
        };
        for (int i = 0; i < total;) {
            for (size_t s = 0; s < texts.size(); s++) {
                // Runs of up to 64 tokens of a sequence, so that sequences lie mixed in the cache.
                for (int run = 0; run < 64 && done[s] < texts[s].size(); run++, i++) {
                    const bool last = done[s] + 1 == texts[s].size();
                    const int n = batch.n_tokens++;
                    batch.token[n] = texts[s][done[s]++];
                    batch.pos[n] = at[s]++;
                    batch.n_seq_id[n] = 1;
                    batch.seq_id[n][0] = llama_seq_id(s);
                    batch.logits[n] = last;
                    if (last) {
                        wanted.emplace_back(n, s);
                    }
                    if (batch.n_tokens == most) {
                        flush();
                    }
                }
            }
        }
        flush();
        llama_batch_free(batch);
    }
    void feed_one(const std::string & step, const Tokens & tokens) { feed(step, std::vector<Tokens>{tokens}); }
    void one_by_one(const std::string & step, const Tokens & tokens) {
        for (size_t i = 0; i < tokens.size(); i++) {
            feed_one(step + " " + std::to_string(i), Tokens{tokens[i]});
        }
    }
    void remove(int s, int begin, int end) {
        if (!llama_memory_seq_rm(memory(), s, begin, end)) {
            fprintf(stderr, "%s: seq_rm failed\n", name.c_str());
            exit(1);
        }
        if (end < 0) {
            at[size_t(s)] = begin;
        }
    }
};

void one_sequence(Output & out, llama_model * model, const Config & config, int n, int vocab) {
    Session s(out, model, config);
    auto words = [&](int count, unsigned seed) { return text(count, seed, vocab); };
    s.feed_one("prompt", words(n, 1));
    s.one_by_one("decode", words(3, 2));
    s.feed_one("prompt after decode", words(n / 4, 3));
    s.one_by_one("decode again", words(2, 4));
    s.remove(0, n - n / 8, -1);
    s.one_by_one("after removing the end", words(3, 5));
    s.feed_one("prompt after removing the end", words(n / 4, 6));
    // Cells in the middle are free and taken again, while later ones stay.
    llama_memory_seq_rm(s.memory(), 0, n / 4, n / 4 + 40);
    s.one_by_one("after removing the middle", words(3, 7));
    s.feed_one("prompt into the middle", words(200, 8));
    s.one_by_one("decode after that", words(2, 9));
    // The context is shifted: the oldest tokens but the first go, positions of the others change.
    llama_memory_seq_rm(s.memory(), 0, 16, 16 + n / 4);
    llama_memory_seq_add(s.memory(), 0, 16 + n / 4, -1, -n / 4);
    s.at[0] -= n / 4;
    s.one_by_one("after a shift", words(3, 10));
    s.feed_one("prompt after a shift", words(300, 11));
    s.one_by_one("decode after that shift", words(2, 12));
    // Kept aside, overwritten, restored.
    std::vector<uint8_t> state(llama_state_seq_get_size(s.ctx.get(), 0));
    llama_state_seq_get_data(s.ctx.get(), state.data(), state.size(), 0);
    const int kept = s.at[0];
    s.remove(0, 0, -1);
    s.feed_one("other text", words(n, 13));
    llama_memory_seq_rm(s.memory(), 0, -1, -1);
    if (llama_state_seq_set_data(s.ctx.get(), state.data(), state.size(), 0) == 0) {
        fprintf(stderr, "%s: state was not restored\n", s.name.c_str());
        exit(1);
    }
    s.at[0] = kept;
    s.one_by_one("after restoring", words(3, 14));
    for (bool data : {true, false}) {
        llama_memory_clear(s.memory(), data);
        s.at[0] = 0;
        s.feed_one(data ? "after clearing" : "after clearing without data", words(n, data ? 15 : 16));
        s.one_by_one("decode after clearing", words(2, 17));
    }
}

void several_sequences(Output & out, llama_model * model, const Config & config, int n, int vocab) {
    Session s(out, model, config);
    auto words = [&](int count, unsigned seed) { return text(count, seed, vocab); };
    s.feed("prompts", {words(n, 21), words(n + 100, 22)});
    s.feed("tokens", {words(1, 23), words(1, 24)});
    s.feed("one of them", {words(1, 25), {}});
    s.feed("the other", {{}, words(200, 26)});
    // A third that begins as the first.
    llama_memory_seq_cp(s.memory(), 0, 2, -1, -1);
    s.at[2] = s.at[0];
    s.feed("after a copy", {words(1, 27), words(1, 28), words(1, 29)});
    s.feed("apart", {words(40, 30), words(40, 31), words(150, 32)});
    llama_memory_seq_rm(s.memory(), 1, -1, -1);
    s.at[1] = 0;
    s.feed("one anew", {{}, words(n, 33), words(1, 34)});
    llama_memory_seq_keep(s.memory(), 2);
    s.feed("one kept", {{}, {}, words(2, 35)});
}

void two_contexts(Output & out, llama_model * model, const Config & config, int n, int vocab) {
    Session a(out, model, config), b(out, model, config);
    a.feed_one("first", text(n, 41, vocab));
    b.feed_one("second", text(n, 42, vocab));
    a.one_by_one("first", text(2, 43, vocab));
    b.one_by_one("second", text(2, 44, vocab));
}

int run(const char * libraries, const char * plugin, const char * path, const char * to, int n) {
    test::load(libraries, plugin);
    llama_log_set([](ggml_log_level level, const char * line, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) {
            fputs(line, stderr);
        }
    }, nullptr);
    std::unique_ptr<llama_model, void (*)(llama_model *)> model(llama_model_load_from_file(path, llama_model_default_params()), llama_model_free);
    if (!model) {
        fprintf(stderr, "%s: no model\n", path);
        return 1;
    }
    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model.get()));
    Output out = {fopen(to, "wb"), vocab};
    if (!out.file) {
        perror(to);
        return 1;
    }
    const int room = (2 * n + 1023) / 256 * 256;
    one_sequence(out, model.get(), {"f16", room, 512, 1, false, GGML_TYPE_F16}, n, vocab);
    one_sequence(out, model.get(), {"q8_0", room, 256, 1, false, GGML_TYPE_Q8_0}, n, vocab);
    one_sequence(out, model.get(), {"whole prompts", room, 4096, 1, false, GGML_TYPE_F16}, n, vocab);
    several_sequences(out, model.get(), {"unified", 4 * room, 512, 3, true, GGML_TYPE_F16}, n, vocab);
    several_sequences(out, model.get(), {"streams", 3 * room, 512, 3, false, GGML_TYPE_F16}, n, vocab);
    two_contexts(out, model.get(), {"two contexts", room, 7, 1, false, GGML_TYPE_F32}, n / 4, vocab);
    two_contexts(out, model.get(), {"bf16", room, 512, 1, false, GGML_TYPE_BF16}, n, vocab);
    fclose(out.file);
    if (ggml_backend_reg_t reg = ggml_backend_reg_by_name("iceformer")) {
        auto read = reinterpret_cast<void (*)(iceformer_ggml_stats *, bool)>(ggml_backend_reg_get_proc_address(reg, "iceformer_stats"));
        iceformer_ggml_stats s = {};
        read(&s, false);
        printf("plugin: %llu attention ops, %llu accelerated; %llu keys appended, %llu forgotten, %llu changed unseen, %llu rebuilds\n",
               (unsigned long long) s.attend_calls, (unsigned long long) s.attend_accelerated, (unsigned long long) s.rows_appended,
               (unsigned long long) s.cells_lost, (unsigned long long) s.unseen_writes, (unsigned long long) s.rebuilds);
        if (s.attend_calls == 0) {
            fprintf(stderr, "no attention came to the plugin\n");
            return 1;
        }
        const char * mode = getenv("ICE_MODE");
        if (mode && strcmp(mode, "accelerated") == 0 && (s.attend_accelerated == 0 || s.unseen_writes == 0 || s.rebuilds == 0)) {
            fprintf(stderr, "what this test is about did not happen\n");
            return 1;
        }
    }
    return 0;
}

// The default of llama.cpp switches flash attention off because of the plugin, which says so.
int run_auto(const char * libraries, const char * plugin, const char * path) {
    test::load(libraries, plugin);
    std::unique_ptr<llama_model, void (*)(llama_model *)> model(llama_model_load_from_file(path, llama_model_default_params()), llama_model_free);
    llama_context_params p = llama_context_default_params();
    p.n_ctx = 256;
    std::unique_ptr<llama_context, void (*)(llama_context *)> ctx(model ? llama_init_from_model(model.get(), p) : nullptr, llama_free);
    for (int i = 0; ctx && i < 3; i++) {
        llama_token token = 5;
        if (llama_decode(ctx.get(), llama_batch_get_one(&token, 1)) != 0) {
            return 1;
        }
    }
    return ctx ? 0 : 1;
}

struct Step {
    std::string name;
    std::vector<float> logits;
};

std::vector<Step> read(const char * path) {
    std::vector<Step> out;
    FILE * file = fopen(path, "rb");
    uint32_t n;
    while (file && fread(&n, 4, 1, file) == 1) {
        Step s;
        s.name.resize(n);
        bool ok = fread(&s.name[0], 1, n, file) == n && fread(&n, 4, 1, file) == 1;
        s.logits.resize(ok ? n : 0);
        ok = ok && fread(s.logits.data(), 4, n, file) == n;
        if (!ok) {
            fprintf(stderr, "%s is damaged\n", path);
            exit(1);
        }
        out.push_back(std::move(s));
    }
    if (file) {
        fclose(file);
    }
    return out;
}

int compare(const char * a, const char * b, double most) {
    const std::vector<Step> x = read(a), y = read(b);
    if (x.empty() || x.size() != y.size()) {
        fprintf(stderr, "%zu steps against %zu\n", x.size(), y.size());
        return 1;
    }
    double worst = 0, sum = 0;
    std::string where;
    int failed = 0, same = 0;
    for (size_t i = 0; i < x.size(); i++) {
        double mean = 0, norm = 0, off = 0;
        for (float v : x[i].logits) {
            mean += double(v);
        }
        mean /= double(x[i].logits.size());
        for (size_t j = 0; j < x[i].logits.size(); j++) {
            norm += std::pow(double(x[i].logits[j]) - mean, 2);
            off += std::pow(double(x[i].logits[j]) - double(y[i].logits[j]), 2);
        }
        const double e = std::sqrt(off / norm);
        auto top = [](const std::vector<float> & v) { return std::max_element(v.begin(), v.end()) - v.begin(); };
        same += top(x[i].logits) == top(y[i].logits);
        sum += e;
        if (x[i].name != y[i].name || !(e <= most)) {
            fprintf(stderr, "FAILED %s: error %g, at most %g\n", x[i].name.c_str(), e, most);
            failed++;
        }
        if (e > worst || where.empty()) {
            worst = e;
            where = x[i].name;
        }
    }
    printf("%zu steps: mean error %.1e, largest %.1e (%s), same best token %d, %d failed\n", x.size(), sum / double(x.size()), worst,
           where.c_str(), same, failed);
    return failed ? 1 : 0;
}

} // namespace

int main(int argc, char ** argv) {
    if (argc == 3 && strcmp(argv[1], "model") == 0) {
        test::write_tiny_model(argv[2]);
        return 0;
    }
    if ((argc == 6 || argc == 7) && strcmp(argv[1], "run") == 0) {
        return run(argv[2], argv[3], argv[4], argv[5], argc == 7 ? atoi(argv[6]) : 2600);
    }
    if (argc == 5 && strcmp(argv[1], "auto") == 0) {
        return run_auto(argv[2], argv[3], argv[4]);
    }
    if (argc == 5 && strcmp(argv[1], "compare") == 0) {
        return compare(argv[2], argv[3], atof(argv[4]));
    }
    fprintf(stderr, "see the head of %s.cpp\n", argv[0]);
    return 2;
}
