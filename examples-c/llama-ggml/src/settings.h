// Settings from the environment, read when a backend is made.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ice {

enum class Mode {
    automatic,   // accelerated where it is predicted to pay
    exact,       // never accelerated
    accelerated, // accelerated from 256 keys on, whatever is predicted
    host,        // every attention handed back to the host's CPU backend, and timed: for comparisons
};

struct Settings {
    float tolerance = 0.05f;                // ICE_TOLERANCE, 0 = exact
    Mode mode = Mode::automatic;            // ICE_MODE
    std::vector<std::pair<int, int>> layers; // ICE_LAYERS, inclusive ranges; empty: all
    int threads = 0;                        // ICE_THREADS, 0 = as many as the host uses
    bool stats = false;                     // ICE_STATS

    bool layer_selected(int layer) const;
    bool accelerates() const { return tolerance > 0 && (mode == Mode::automatic || mode == Mode::accelerated); }
    std::string text() const;

    // What cannot be understood is named on standard error and left at its default.
    static Settings from_environment();
};

} // namespace ice
