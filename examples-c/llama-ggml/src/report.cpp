#include "report.h"

#include <cmath>
#include <string>

namespace ice {

namespace {

// "-" for what is not known.
std::string number(const char * form, double x, bool known) {
    char text[48] = "-";
    if (known) {
        snprintf(text, sizeof text, form, x);
    }
    return text;
}

} // namespace

void Report::compared(int kind, const Comparison & c) {
    sums_[kind].pairs += c.pairs;
    sums_[kind].seconds += c.seconds;
    sums_[kind].error += c.error;
    sums_[kind].output += c.output;
    comparisons_++;
}

double Report::exact_rate(int kind) const {
    if (sums_[kind].pairs > 0) {
        return sums_[kind].seconds / sums_[kind].pairs;
    }
    // Nothing was computed both ways: what was exact anyway tells, where it is more than a few short calls.
    double pairs = 0, seconds = 0, all = 0;
    for (const auto & [layer, c] : layers_) {
        pairs += c.kinds[kind].pairs_exact;
        seconds += c.kinds[kind].seconds_exact;
        all += c.kinds[kind].pairs;
    }
    return pairs * 10 >= all && pairs > 0 ? seconds / pairs : 0;
}

void Report::print(FILE * to, const Stats & s, const Settings & settings) const {
    const bool by_host = settings.mode == Mode::host;
    const double rates[2] = {exact_rate(0), exact_rate(1)};
    fprintf(to, "iceformer: %5s  %-11s %6s %12s %8s %7s %7s %9s %9s %7s\n", "layer", "mode", "calls", "accelerated", "scored", "error",
            "p95", "ms", "exact ms", "times");
    double seconds[2] = {}, exact[2] = {}, scored = 0, visible = 0, p95 = 0;
    for (const auto & [layer, c] : layers_) {
        double own = 0, other = 0, pairs = 0;
        uint64_t calls = 0;
        bool known = !by_host;
        for (int kind = 0; kind < 2; kind++) {
            const LayerCounts::Kind & k = c.kinds[kind];
            const double would = k.seconds_exact + (k.pairs - k.pairs_exact) * rates[kind];
            known = known && (k.pairs <= k.pairs_exact || rates[kind] > 0);
            own += k.seconds;
            other += would;
            pairs += k.pairs;
            seconds[kind] += k.seconds;
            exact[kind] += would;
            calls += k.calls;
        }
        const double here = pairs - double(c.dense) + double(c.scored);
        scored += here;
        visible += pairs;
        p95 += c.p95;
        const bool measured = c.rows_measured > 0;
        const char * mode = by_host ? "host" : c.sparse > 0 ? "accelerated" : "exact";
        fprintf(to, "iceformer: %5s  %-11s %6llu %10.1f %% %6.1f %% %7s %7s %9.1f %9s %7s\n", layer < 0 ? "-" : std::to_string(layer).c_str(), mode,
                (unsigned long long) calls, pairs > 0 ? 100 * double(c.sparse) / pairs : 0.0, pairs > 0 ? 100 * here / pairs : 100.0,
                number("%.1f %%", 100 * std::sqrt(c.squares / double(measured ? c.rows_measured : 1)), measured).c_str(),
                number("%.1f %%", 100 * c.p95 / double(measured ? c.rows_measured : 1), measured).c_str(), 1e3 * own,
                number("%.1f", 1e3 * other, known).c_str(), number("%.2f", other / own, known && own > 0).c_str());
    }
    auto part = [&](const char * name, int kind) {
        std::string out = name + number(" %.3f s", seconds[kind], true);
        const bool known = !by_host && exact[kind] > 0 && seconds[kind] > 0 && (s.attend_accelerated == 0 || rates[kind] > 0);
        if (known) {
            out += number(" (exact %.3f s,", exact[kind], true) + number(" %.2f times)", exact[kind] / seconds[kind], true);
        }
        return out;
    };
    std::string error = "no error measured";
    if (s.rows_measured > 0) {
        error = number("measured error %.1f %%", 100 * std::sqrt(s.squares_measured / double(s.rows_measured)), true) +
                number(", p95 %.1f %%", 100 * p95 / double(s.rows_measured), true) +
                number(" (%.0f sampled rows)", double(s.rows_measured), true);
    }
    if (s.check_output > 0) {
        error += number(", against exact attention %.1f %%", 100 * std::sqrt(s.check_error / s.check_output), true) +
                 number(" (%.0f calls computed both ways)", double(comparisons_), true);
    }
    fprintf(to, "iceformer: attention of %s, of %s; %.1f %% of the pairs scored; %s; %.1f MiB\n", part("prompts", 0).c_str(),
            part("steps", 1).c_str(), visible > 0 ? 100 * scored / visible : 100.0, error.c_str(), double(s.session_bytes) / (1 << 20));
    fprintf(to,
            "iceformer: %llu attention ops: %llu accelerated, %llu exact, %llu by the host, %llu plain parts; masks %.3f s, "
            "fingerprints %.3f s, appending %.3f s; stores %.3f s; %llu keys taken, %llu forgotten, %llu changed unseen, %llu "
            "rebuilds\n",
            (unsigned long long) s.attend_calls, (unsigned long long) s.attend_accelerated, (unsigned long long) s.attend_exact,
            (unsigned long long) s.attend_host, (unsigned long long) s.attend_naive, s.mask_seconds, s.check_seconds,
            s.append_seconds, s.store_seconds, (unsigned long long) s.rows_appended, (unsigned long long) s.cells_lost,
            (unsigned long long) s.unseen_writes, (unsigned long long) s.rebuilds);
}

} // namespace ice
