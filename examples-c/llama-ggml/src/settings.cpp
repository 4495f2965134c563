#include "settings.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ice {

namespace {

void complain(const char * name, const char * value, const char * want) {
    fprintf(stderr, "iceformer: %s=%s: want %s; ignored\n", name, value, want);
}

// "0,2-3"; false if it is anything else.
bool parse_layers(const char * text, std::vector<std::pair<int, int>> & out) {
    for (const char * at = text;;) {
        char * end = nullptr;
        const long first = strtol(at, &end, 10);
        if (end == at || first < 0 || first > 1000000) {
            return false;
        }
        long last = first;
        if (*end == '-') {
            at = end + 1;
            last = strtol(at, &end, 10);
            if (end == at || last < first || last > 1000000) {
                return false;
            }
        }
        out.emplace_back(int(first), int(last));
        if (*end == '\0') {
            return true;
        }
        if (*end != ',') {
            return false;
        }
        at = end + 1;
    }
}

const char * mode_name(Mode mode) {
    switch (mode) {
        case Mode::automatic: return "auto";
        case Mode::exact: return "exact";
        case Mode::accelerated: return "accelerated";
        case Mode::host: return "host";
    }
    return "?";
}

} // namespace

bool Settings::layer_selected(int layer) const {
    if (layers.empty()) {
        return true;
    }
    for (const auto & range : layers) {
        if (layer >= range.first && layer <= range.second) {
            return true;
        }
    }
    return false;
}

std::string Settings::text() const {
    char head[96];
    snprintf(head, sizeof head, "mode %s, tolerance %g, layers ", mode_name(mode), double(tolerance));
    std::string out = head;
    if (layers.empty()) {
        return out + "all";
    }
    for (size_t i = 0; i < layers.size(); i++) {
        out += (i ? "," : "") + std::to_string(layers[i].first);
        if (layers[i].second != layers[i].first) {
            out += "-" + std::to_string(layers[i].second);
        }
    }
    return out;
}

Settings Settings::from_environment() {
    Settings s;
    if (const char * text = getenv("ICE_TOLERANCE"); text && *text) {
        char * end = nullptr;
        const float x = strtof(text, &end);
        if (*end == '\0' && x >= 0 && x <= 1) {
            s.tolerance = x;
        } else {
            complain("ICE_TOLERANCE", text, "a number from 0 to 1");
        }
    }
    if (const char * text = getenv("ICE_MODE"); text && *text) {
        const Mode modes[] = {Mode::automatic, Mode::exact, Mode::accelerated, Mode::host};
        bool known = false;
        for (Mode m : modes) {
            if (strcmp(text, mode_name(m)) == 0) {
                s.mode = m;
                known = true;
            }
        }
        if (!known) {
            complain("ICE_MODE", text, "auto, exact, accelerated or host");
        }
    }
    if (const char * text = getenv("ICE_LAYERS"); text && *text && strcmp(text, "all") != 0) {
        if (!parse_layers(text, s.layers)) {
            s.layers.clear();
            complain("ICE_LAYERS", text, "numbers and ranges such as 0,2-3");
        }
    }
    if (const char * text = getenv("ICE_THREADS"); text && *text) {
        char * end = nullptr;
        const long n = strtol(text, &end, 10);
        if (*end == '\0' && n >= 0 && n <= 4096) {
            s.threads = int(n);
        } else {
            complain("ICE_THREADS", text, "a number of threads");
        }
    }
    if (const char * text = getenv("ICE_STATS"); text && *text) {
        s.stats = strcmp(text, "0") != 0;
    }
    return s;
}

} // namespace ice
