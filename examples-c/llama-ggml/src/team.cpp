#include "team.h"

#include <algorithm>
#include <dlfcn.h>

namespace ice {

Team::Team() {
    // Never loads a runtime: only one that is there already is used.
    for (const char * name : {"libgomp.so.1", "libomp.so.5", "libomp.so", "libiomp5.so"}) {
        void * lib = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
        if (!lib) {
            continue;
        }
        parallel_ = reinterpret_cast<decltype(parallel_)>(dlsym(lib, "GOMP_parallel"));
        thread_num_ = reinterpret_cast<decltype(thread_num_)>(dlsym(lib, "omp_get_thread_num"));
        num_threads_ = reinterpret_cast<decltype(num_threads_)>(dlsym(lib, "omp_get_num_threads"));
        if (parallel_ && thread_num_ && num_threads_) {
            return; // the handle is kept: the runtime stays
        }
        parallel_ = nullptr;
        dlclose(lib);
    }
}

Team::~Team() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    begin_.notify_all();
    for (std::thread & t : threads_) {
        t.join();
    }
}

void Team::start(int n) {
    while (int(threads_.size()) < n) {
        const int ith = int(threads_.size()) + 1;
        try {
            threads_.emplace_back([this, ith] { work(ith); });
        } catch (...) {
            return; // fewer threads than wished for
        }
    }
}

void Team::work(int ith) {
    unsigned long seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        begin_.wait(lock, [&] { return stop_ || turn_ != seen; });
        if (stop_) {
            return;
        }
        seen = turn_;
        if (ith >= nth_) {
            continue;
        }
        const Part * part = part_;
        const int nth = nth_;
        lock.unlock();
        (*part)(ith, nth);
        lock.lock();
        if (--left_ == 0) {
            end_.notify_one();
        }
    }
}

namespace {

struct Openmp {
    const Team::Part * part;
    int (*thread_num)();
    int (*num_threads)();
};

} // namespace

void Team::run(int most, const Part & part) {
    const int n = std::min(size_, most);
    if (n <= 1) {
        part(0, 1);
        return;
    }
    if (parallel_) {
        Openmp data = {&part, thread_num_, num_threads_};
        // The runtime may give fewer threads than asked for.
        auto body = [](void * p) {
            const Openmp & o = *static_cast<const Openmp *>(p);
            (*o.part)(o.thread_num(), o.num_threads());
        };
        parallel_(body, &data, unsigned(n), 0);
        return;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    const size_t before = threads_.size();
    if (int(before) < n - 1) {
        start(n - 1);
    }
    part_ = &part;
    nth_ = std::min(n, int(threads_.size()) + 1);
    left_ = nth_ - 1;
    turn_++;
    const int nth = nth_;
    lock.unlock();
    begin_.notify_all();
    part(0, nth);
    lock.lock();
    end_.wait(lock, [&] { return left_ == 0; });
}

} // namespace ice
