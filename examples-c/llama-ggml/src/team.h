// Fork and join on the host's own kind of threads, so that two pools never compete for the same cores.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ice {

// Runs a function on up to `size` threads. Where the process has an OpenMP runtime (the host's CPU backend was built with
// it), its thread pool does the work: the same threads, which this way are never busy twice. Elsewhere an own pool that
// sleeps between calls.
class Team {
public:
    using Part = std::function<void(int ith, int nth)>;

    Team();
    ~Team();
    Team(const Team &) = delete;
    Team & operator=(const Team &) = delete;

    void resize(int n) { size_ = n < 1 ? 1 : n; }
    int size() const { return size_; }
    const char * kind() const { return parallel_ ? "openmp" : "own"; }

    // Calls part(0, nth) .. part(nth - 1, nth), nth <= min(size, most), and waits for all of them. `part` must not throw.
    void run(int most, const Part & part);

private:
    void work(int ith);
    void start(int n);

    int size_ = 1;

    // GOMP_parallel, omp_get_thread_num and omp_get_num_threads of the runtime in the process.
    void (*parallel_)(void (*)(void *), void *, unsigned, unsigned) = nullptr;
    int (*thread_num_)() = nullptr;
    int (*num_threads_)() = nullptr;

    std::mutex mutex_;
    std::condition_variable begin_, end_;
    std::vector<std::thread> threads_;
    const Part * part_ = nullptr;
    int nth_ = 0, left_ = 0;
    unsigned long turn_ = 0;
    bool stop_ = false;
};

} // namespace ice
