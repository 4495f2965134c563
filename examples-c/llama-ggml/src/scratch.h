// Growing buffers aligned to a cache line; what is in them does not survive growth.
#pragma once

#include <cstddef>
#include <cstdlib>

namespace ice {

class Scratch {
public:
    Scratch() = default;
    Scratch(Scratch && other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr; other.size_ = 0; }
    Scratch(const Scratch &) = delete;
    Scratch & operator=(const Scratch &) = delete;
    ~Scratch() { free(data_); }

    // At least `bytes`, or nullptr.
    void * take(size_t bytes) {
        if (bytes > size_) {
            free(data_);
            const size_t n = (bytes + bytes / 4 + 63) / 64 * 64;
            data_ = aligned_alloc(64, n);
            size_ = data_ ? n : 0;
        }
        return data_;
    }
    template <typename T> T * take_of(size_t n) { return static_cast<T *>(take((n ? n : 1) * sizeof(T))); }

private:
    void * data_ = nullptr;
    size_t size_ = 0;
};

} // namespace ice
