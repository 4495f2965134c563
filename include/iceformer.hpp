/* iceformer.hpp - C++17 on top of iceformer.h: handles that free themselves, spans, errors as exceptions or values.
 * Header only; link the same library. Licence: MIT OR Apache-2.0.
 *
 *   Every call that can fail has two forms: `x.f(...)` throws iceformer::error, `x.try_f(...)` returns
 *   iceformer::expected. With exceptions switched off only the second is there.
 *   Handles are unique: they move and do not copy. A moved-from handle is empty; only assignment and destruction are
 *   allowed then. Threads and allocation are as iceformer.h says of the function of the same name: const members may
 *   run together, others are exclusive.
 *   Shapes are taken from the sizes of spans: `keys.size()` must be a multiple of the dimension.
 */
#ifndef ICEFORMER_HPP
#define ICEFORMER_HPP

#include "iceformer.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS) || defined(_CPPUNWIND)
#define ICEFORMER_EXCEPTIONS 1
#include <stdexcept>
#else
#define ICEFORMER_EXCEPTIONS 0
#endif

namespace iceformer {

/* ---- Errors ---- */

/// A status that is not ICE_OK, and the library's message about it. Holds no heap memory.
class failure {
public:
  explicit failure(ice_status status) noexcept {
    ice_error_init(&error_);
    error_.status = status;
    put(ice_status_message(status));
  }
  failure(ice_status status, const char *message) noexcept {
    ice_error_init(&error_);
    error_.status = status;
    put(message);
  }
  explicit failure(const ice_error &error) noexcept : error_(error) {}

  ice_status status() const noexcept { return error_.status; }
  const char *message() const noexcept { return error_.message; }

private:
  void put(const char *text) noexcept {
    std::size_t i = 0;
    for (; text[i] != '\0' && i + 1 < sizeof error_.message; i++) error_.message[i] = text[i];
    error_.message[i] = '\0';
  }
  ice_error error_;
};

#if ICEFORMER_EXCEPTIONS
/// A failure as an exception.
class error : public std::runtime_error {
public:
  explicit error(const failure &f) : std::runtime_error(f.message()), status_(f.status()) {}
  ice_status status() const noexcept { return status_; }

private:
  ice_status status_;
};
#endif

namespace detail {
[[noreturn]] inline void raise(const failure &f) {
#if ICEFORMER_EXCEPTIONS
  throw error(f);
#else
  (void)f;
  std::abort();
#endif
}
} // namespace detail

/// A value or a failure.
template <class T> class [[nodiscard]] expected {
public:
  expected(T value) : value_(std::move(value)) {}
  expected(const failure &f) : failure_(f) {}

  explicit operator bool() const noexcept { return value_.has_value(); }
  bool has_value() const noexcept { return value_.has_value(); }
  /// The failure; only where there is one.
  const failure &error() const noexcept { return *failure_; }
  T &operator*() & noexcept { return *value_; }
  const T &operator*() const & noexcept { return *value_; }
  T &&operator*() && noexcept { return std::move(*value_); }
  T *operator->() noexcept { return &*value_; }
  const T *operator->() const noexcept { return &*value_; }
  /// The value; throws iceformer::error, or aborts where exceptions are off.
  T &value() & { return check(), *value_; }
  T &&value() && { return check(), std::move(*value_); }

private:
  void check() const {
    if (!value_) detail::raise(*failure_);
  }
  std::optional<T> value_;
  std::optional<failure> failure_;
};

/// Success or a failure.
template <> class [[nodiscard]] expected<void> {
public:
  expected() noexcept = default;
  expected(const failure &f) : failure_(f) {}

  explicit operator bool() const noexcept { return !failure_; }
  bool has_value() const noexcept { return !failure_; }
  const failure &error() const noexcept { return *failure_; }
  void value() const {
    if (failure_) detail::raise(*failure_);
  }

private:
  std::optional<failure> failure_;
};

/* ---- Views ---- */

/// Elements that belong to somebody else: made from a vector, an array, std::span, or pointer and count.
template <class T> class span {
public:
  constexpr span() noexcept = default;
  constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
  template <std::size_t N> constexpr span(T (&array)[N]) noexcept : data_(array), size_(N) {}
  template <class C, class P = decltype(std::declval<C &>().data()), class = decltype(std::declval<C &>().size()),
            class = std::enable_if_t<std::is_convertible_v<std::remove_pointer_t<P> (*)[], T (*)[]> &&
                                     !std::is_same_v<std::remove_cv_t<std::remove_reference_t<C>>, span>>>
  constexpr span(C &&container) noexcept : data_(container.data()), size_(container.size()) {}

  constexpr T *data() const noexcept { return data_; }
  constexpr std::size_t size() const noexcept { return size_; }
  constexpr bool empty() const noexcept { return size_ == 0; }
  constexpr T &operator[](std::size_t i) const noexcept { return data_[i]; }
  constexpr T *begin() const noexcept { return data_; }
  constexpr T *end() const noexcept { return data_ + size_; }

private:
  T *data_ = nullptr;
  std::size_t size_ = 0;
};

/// Read-only tensor [batch, heads, rows, cols] in f32; strides in bytes, 0 = packed.
inline ice_tensor tensor(const float *data, std::size_t row_stride = 0, std::size_t head_stride = 0,
                         std::size_t batch_stride = 0) noexcept {
  return ice_tensor{data, ICE_F32, row_stride, head_stride, batch_stride};
}

/// The same in any element type.
inline ice_tensor tensor(const void *data, ice_dtype dtype, std::size_t row_stride = 0, std::size_t head_stride = 0,
                         std::size_t batch_stride = 0) noexcept {
  return ice_tensor{data, dtype, row_stride, head_stride, batch_stride};
}

/// Writable tensor in f32; strides in bytes, 0 = packed.
inline ice_tensor_mut tensor_mut(float *data, std::size_t row_stride = 0, std::size_t head_stride = 0,
                                 std::size_t batch_stride = 0) noexcept {
  return ice_tensor_mut{data, ICE_F32, row_stride, head_stride, batch_stride};
}

/* ---- Options, ready to be changed field by field ---- */

inline ice_index_options index_options(std::uint32_t dim) noexcept {
  ice_index_options o;
  ice_index_options_init(&o, dim);
  return o;
}

inline ice_query_options query_options(std::uint32_t k) noexcept {
  ice_query_options o;
  ice_query_options_init(&o, k);
  return o;
}

inline ice_attention_options attention_options() noexcept {
  ice_attention_options o;
  ice_attention_options_init(&o);
  return o;
}

inline ice_attention_desc attention_desc() noexcept {
  ice_attention_desc d;
  ice_attention_desc_init(&d);
  return d;
}

inline ice_session_options session_options() noexcept {
  ice_session_options o;
  ice_session_options_init(&o);
  return o;
}

inline ice_mask mask(ice_mask_kind kind = ICE_MASK_NONE) noexcept {
  ice_mask m;
  ice_mask_init(&m);
  m.kind = kind;
  return m;
}

inline ice_attention_stats attention_stats() noexcept {
  ice_attention_stats s;
  ice_attention_stats_init(&s);
  return s;
}

/// Where saved bytes come from, and what they may cost.
inline ice_load_options load_options() noexcept {
  ice_load_options o;
  ice_load_options_init(&o);
  return o;
}

/// What takes saved bytes, as fwrite does; `user` comes with every call.
using writer = std::size_t (*)(void *user, const void *from, std::size_t bytes);

/// Bytes and alignment of caller memory.
struct layout {
  std::size_t bytes = 0;
  std::size_t align = 0;
};

namespace detail {

/// Runs a call with an error report.
template <class F> expected<void> call(F &&f) {
  ice_error e;
  ice_error_init(&e);
  if (f(&e) != ICE_OK) return failure(e);
  return {};
}

/// Runs a call that returns a plain status.
inline expected<void> plain(ice_status status) {
  if (status != ICE_OK) return failure(status);
  return {};
}

/// Runs a call that writes a value.
template <class T, class F> expected<T> made(F &&f) {
  T value{};
  ice_error e;
  ice_error_init(&e);
  if (f(&value, &e) != ICE_OK) return failure(e);
  return expected<T>(std::move(value));
}

/// Rows of `width` elements; the rest must be zero.
inline expected<std::size_t> rows(std::size_t size, std::size_t width, const char *message) {
  if (width == 0 || size % width != 0) return failure(ICE_ERR_SHAPE, message);
  return size / width;
}

struct index_free {
  void operator()(ice_index *p) const noexcept { ice_index_free(p); }
};
struct scratch_free {
  void operator()(ice_scratch *p) const noexcept { ice_scratch_free(p); }
};
struct session_free {
  void operator()(ice_session *p) const noexcept { ice_session_free(p); }
};

/// Owner of one C handle.
template <class T, class Free> class handle {
public:
  T *get() const noexcept { return p_.get(); }
  /// Gives the C handle away; the caller frees it.
  T *release() noexcept { return p_.release(); }
  explicit operator bool() const noexcept { return p_ != nullptr; }

protected:
  explicit handle(T *p) noexcept : p_(p) {}

private:
  std::unique_ptr<T, Free> p_;
};

/// Makes a wrapper of what a C call puts out.
template <class W, class T, class F> expected<W> wrapped(F &&f) {
  T *p = nullptr;
  ice_error e;
  ice_error_init(&e);
  if (f(&p, &e) != ICE_OK) return failure(e);
  return W(p);
}

template <class F> expected<layout> sized(F &&f) {
  layout l;
  ice_error e;
  ice_error_init(&e);
  if (f(&l.bytes, &l.align, &e) != ICE_OK) return failure(e);
  return l;
}

/// What `save` gives: asks for the size, then fills.
template <class F> expected<std::vector<std::uint8_t>> saved(F &&f) {
  std::size_t needed = 0;
  if (ice_status s = f(nullptr, std::size_t{0}, &needed); s != ICE_OK) return failure(s);
  std::vector<std::uint8_t> bytes(needed);
  if (ice_status s = f(bytes.data(), bytes.size(), &needed); s != ICE_OK) return failure(s);
  return bytes;
}

} // namespace detail

class index;

/* ---- Query state of one thread ---- */

class scratch : public detail::handle<ice_scratch, detail::scratch_free> {
public:
  explicit scratch(ice_scratch *owned) noexcept : handle(owned) {}
  static inline expected<scratch> try_make(const index &index);
  /// Inside caller memory, which must outlive the scratch.
  static inline expected<scratch> try_make_in(span<std::byte> memory, const index &index);
  /// With room for ice_index_attention of many rows to values of `dim_v` elements.
  static inline expected<scratch> try_make_attention(const index &index, std::uint32_t dim_v);
#if ICEFORMER_EXCEPTIONS
  explicit scratch(const index &index) : scratch(try_make(index).value()) {}
#endif
};

/* ---- Index ---- */

class index : public detail::handle<ice_index, detail::index_free> {
public:
  /// Takes over a C handle.
  explicit index(ice_index *owned) noexcept : handle(owned) {}

  static expected<index> try_make(const ice_index_options &options) {
    return detail::wrapped<index, ice_index>([&](auto **p, auto *e) { return ice_index_new(&options, p, e); });
  }
  /// Inside caller memory, which must outlive the index.
  static expected<index> try_make_in(span<std::byte> memory, const ice_index_options &options) {
    return detail::wrapped<index, ice_index>(
        [&](auto **p, auto *e) { return ice_index_new_in(memory.data(), memory.size(), &options, p, e); });
  }
  static expected<layout> try_required(const ice_index_options &options) {
    return detail::sized([&](auto *b, auto *a, auto *e) { return ice_index_required(&options, b, a, e); });
  }
  static expected<index> try_load(span<const std::uint8_t> saved, const ice_allocator *allocator = nullptr) {
    return detail::wrapped<index, ice_index>(
        [&](auto **p, auto *e) { return ice_index_load(saved.data(), saved.size(), allocator, p, e); });
  }
  /// From memory or a function, within a limit.
  static expected<index> try_load(const ice_load_options &options) {
    return detail::wrapped<index, ice_index>([&](auto **p, auto *e) { return ice_index_load_with(&options, p, e); });
  }
  /// Over saved bytes that must outlive the index and stay unchanged, a mapped file for instance; aligned to 4 bytes.
  static expected<index> try_view(span<const std::uint8_t> saved, const ice_allocator *allocator = nullptr) {
    return detail::wrapped<index, ice_index>(
        [&](auto **p, auto *e) { return ice_index_view(saved.data(), saved.size(), allocator, p, e); });
  }

  std::size_t size() const noexcept { return ice_index_len(get()); }
  std::size_t capacity() const noexcept { return ice_index_capacity(get()); }
  std::size_t dim() const noexcept { return ice_index_dim(get()); }
  expected<ice_memory> try_memory() const {
    ice_memory m;
    ice_memory_init(&m);
    if (ice_status s = ice_index_memory(get(), &m); s != ICE_OK) return failure(s);
    return m;
  }

  expected<void> try_reserve(std::size_t keys) {
    return detail::call([&](auto *e) { return ice_index_reserve_err(get(), keys, e); });
  }
  /// keys [n, dim]; the next unused ids are taken.
  expected<void> try_insert(span<const float> keys) {
    auto n = detail::rows(keys.size(), dim(), "keys: their number of elements is no multiple of dim");
    if (!n) return n.error();
    return detail::call([&](auto *e) { return ice_index_insert(get(), keys.data(), *n, nullptr, e); });
  }
  /// keys [n, dim], ids [n].
  expected<void> try_insert(span<const float> keys, span<const std::uint64_t> ids) {
    auto n = detail::rows(keys.size(), dim(), "keys: their number of elements is no multiple of dim");
    if (!n) return n.error();
    if (*n != ids.size()) return failure(ICE_ERR_SHAPE, "ids: not one per key");
    if (*n == 0) return {};
    return detail::call([&](auto *e) { return ice_index_insert(get(), keys.data(), *n, ids.data(), e); });
  }
  /// Every id must be there, or nothing is removed.
  expected<void> try_remove(span<const std::uint64_t> ids) {
    return detail::call([&](auto *e) { return ice_index_remove_err(get(), ids.data(), ids.size(), nullptr, e); });
  }
  /// Removes those that are there and counts them.
  expected<std::size_t> try_remove_present(span<const std::uint64_t> ids) {
    std::size_t removed = 0;
    if (ice_status s = ice_index_remove(get(), ids.data(), ids.size(), &removed); s != ICE_OK) return failure(s);
    return removed;
  }
  expected<void> try_clear() {
    return detail::call([&](auto *e) { return ice_index_clear_err(get(), e); });
  }
  /// queries [n, dim], n at least 128, or none: the keys alone.
  expected<void> try_fit(span<const float> queries) {
    auto n = detail::rows(queries.size(), dim(), "queries: their number of elements is no multiple of dim");
    if (!n) return n.error();
    return detail::call([&](auto *e) { return ice_index_fit_err(get(), queries.data(), *n, e); });
  }

  /// out [n, k], counts nullable or [n]; allocates nothing with a scratch.
  expected<void> try_query_into(span<const float> queries, const ice_query_options &options, span<ice_neighbor> out,
                                span<std::uint32_t> counts = {}, scratch *state = nullptr) const {
    return query_by(ice_index_query, queries, options, out, counts, state);
  }
  /// The same by brute force.
  expected<void> try_query_exact_into(span<const float> queries, const ice_query_options &options,
                                      span<ice_neighbor> out, span<std::uint32_t> counts = {},
                                      scratch *state = nullptr) const {
    return query_by(ice_index_query_exact, queries, options, out, counts, state);
  }
  /// Neighbours of one query, best first.
  expected<std::vector<ice_neighbor>> try_query(span<const float> query, const ice_query_options &options) const {
    if (query.size() != dim()) return failure(ICE_ERR_SHAPE, "query: not dim elements");
    // No more than there are keys, whatever k says.
    ice_query_options o = options;
    if (o.k > size()) o.k = size() == 0 ? 1 : static_cast<std::uint32_t>(size());
    if (options.k == 0) o.k = 0;
    std::vector<ice_neighbor> found(o.k);
    std::uint32_t count = 0;
    auto done = try_query_into(query, o, found, span<std::uint32_t>(&count, 1));
    if (!done) return done.error();
    found.resize(count);
    return found;
  }
  expected<std::vector<ice_neighbor>> try_query(span<const float> query, std::uint32_t k) const {
    return try_query(query, query_options(k));
  }
  expected<std::vector<std::uint8_t>> try_save() const {
    return detail::saved([&](void *b, std::size_t n, std::size_t *need) { return ice_index_save(get(), b, n, need); });
  }
  expected<void> try_save(writer write, void *user) const {
    return detail::call([&](auto *e) { return ice_index_save_to(get(), write, user, e); });
  }

#if ICEFORMER_EXCEPTIONS
  explicit index(const ice_index_options &options) : index(try_make(options).value()) {}
  index(span<std::byte> memory, const ice_index_options &options) : index(try_make_in(memory, options).value()) {}
  static layout required(const ice_index_options &options) { return try_required(options).value(); }
  static index load(span<const std::uint8_t> saved, const ice_allocator *allocator = nullptr) {
    return try_load(saved, allocator).value();
  }
  static index load(const ice_load_options &options) { return try_load(options).value(); }
  static index view(span<const std::uint8_t> saved, const ice_allocator *allocator = nullptr) {
    return try_view(saved, allocator).value();
  }
  ice_memory memory() const { return try_memory().value(); }
  void reserve(std::size_t keys) { try_reserve(keys).value(); }
  void insert(span<const float> keys) { try_insert(keys).value(); }
  void insert(span<const float> keys, span<const std::uint64_t> ids) { try_insert(keys, ids).value(); }
  void remove(span<const std::uint64_t> ids) { try_remove(ids).value(); }
  std::size_t remove_present(span<const std::uint64_t> ids) { return try_remove_present(ids).value(); }
  void clear() { try_clear().value(); }
  void fit(span<const float> queries) { try_fit(queries).value(); }
  void query_into(span<const float> queries, const ice_query_options &options, span<ice_neighbor> out,
                  span<std::uint32_t> counts = {}, scratch *state = nullptr) const {
    try_query_into(queries, options, out, counts, state).value();
  }
  void query_exact_into(span<const float> queries, const ice_query_options &options, span<ice_neighbor> out,
                        span<std::uint32_t> counts = {}, scratch *state = nullptr) const {
    try_query_exact_into(queries, options, out, counts, state).value();
  }
  std::vector<ice_neighbor> query(span<const float> one, const ice_query_options &options) const {
    return try_query(one, options).value();
  }
  std::vector<ice_neighbor> query(span<const float> one, std::uint32_t k) const { return try_query(one, k).value(); }
  std::vector<std::uint8_t> save() const { return try_save().value(); }
  void save(writer write, void *user) const { try_save(write, user).value(); }
#endif

private:
  template <class F>
  expected<void> query_by(F f, span<const float> queries, const ice_query_options &options, span<ice_neighbor> out,
                          span<std::uint32_t> counts, scratch *state) const {
    auto n = detail::rows(queries.size(), dim(), "queries: their number of elements is no multiple of dim");
    if (!n) return n.error();
    if (options.k != 0 && (out.size() / options.k != *n || out.size() % options.k != 0)) {
      return failure(ICE_ERR_SHAPE, "out: not k entries per query");
    }
    if (!counts.empty() && counts.size() != *n) return failure(ICE_ERR_SHAPE, "counts: not one per query");
    return detail::call([&](auto *e) {
      return f(get(), state == nullptr ? nullptr : state->get(), queries.data(), *n, &options, out.data(),
               counts.data(), e);
    });
  }
};

inline expected<scratch> scratch::try_make(const index &index) {
  return detail::wrapped<scratch, ice_scratch>([&](auto **p, auto *e) { return ice_scratch_new(index.get(), p, e); });
}
inline expected<scratch> scratch::try_make_attention(const index &index, std::uint32_t dim_v) {
  return detail::wrapped<scratch, ice_scratch>(
      [&](auto **p, auto *e) { return ice_scratch_new_attention(index.get(), dim_v, p, e); });
}
inline expected<scratch> scratch::try_make_in(span<std::byte> memory, const index &index) {
  return detail::wrapped<scratch, ice_scratch>(
      [&](auto **p, auto *e) { return ice_scratch_new_in(memory.data(), memory.size(), index.get(), p, e); });
}

/* ---- Attention, one call ---- */

inline expected<layout> try_attention_required(const ice_attention_desc &desc) {
  return detail::sized([&](auto *b, auto *a, auto *e) { return ice_attention_required(&desc, b, a, e); });
}

/// work: empty, or aligned to 64 bytes and of the size that try_attention_required says.
inline expected<void> try_attention(const ice_attention_desc &desc, span<std::byte> work = {},
                                    ice_attention_stats *stats = nullptr) {
  return detail::call([&](auto *e) { return ice_attention(&desc, work.data(), work.size(), stats, e); });
}

/// out [rows, dim_v], lse [rows] of both sides; the first becomes the union.
inline expected<void> try_attention_merge(span<float> out_a, span<float> lse_a, span<const float> out_b,
                                          span<const float> lse_b) {
  if (lse_a.size() != lse_b.size() || out_a.size() != out_b.size()) {
    return failure(ICE_ERR_SHAPE, "the two sides differ in size");
  }
  if (lse_a.empty()) return {};
  if (out_a.size() % lse_a.size() != 0) return failure(ICE_ERR_SHAPE, "out: not the same elements for every row");
  return detail::plain(ice_attention_merge(out_a.data(), lse_a.data(), out_b.data(), lse_b.data(), lse_a.size(),
                                           static_cast<std::uint32_t>(out_a.size() / lse_a.size())));
}

#if ICEFORMER_EXCEPTIONS
inline layout attention_required(const ice_attention_desc &desc) { return try_attention_required(desc).value(); }
inline void attention(const ice_attention_desc &desc, span<std::byte> work = {}, ice_attention_stats *stats = nullptr) {
  try_attention(desc, work, stats).value();
}
inline void attention_merge(span<float> out_a, span<float> lse_a, span<const float> out_b, span<const float> lse_b) {
  try_attention_merge(out_a, lse_a, out_b, lse_b).value();
}
#endif

/* ---- Session ---- */

/// Which part of a partitioned call this is.
struct part {
  std::uint32_t ith = 0;
  std::uint32_t nth = 1;
};

class session : public detail::handle<ice_session, detail::session_free> {
public:
  /// Takes over a C handle.
  explicit session(ice_session *owned) noexcept : handle(owned) {}

  static expected<session> try_make(const ice_session_options &options) {
    return detail::wrapped<session, ice_session>([&](auto **p, auto *e) { return ice_session_new(&options, p, e); });
  }
  /// Inside caller memory, which must outlive the session.
  static expected<session> try_make_in(span<std::byte> memory, const ice_session_options &options) {
    return detail::wrapped<session, ice_session>(
        [&](auto **p, auto *e) { return ice_session_new_in(memory.data(), memory.size(), &options, p, e); });
  }
  static expected<layout> try_required(const ice_session_options &options) {
    return detail::sized([&](auto *b, auto *a, auto *e) { return ice_session_required(&options, b, a, e); });
  }
  static expected<session> try_load(span<const std::uint8_t> saved, const ice_allocator *allocator = nullptr) {
    return detail::wrapped<session, ice_session>(
        [&](auto **p, auto *e) { return ice_session_load(saved.data(), saved.size(), allocator, p, e); });
  }
  /// From memory or a function, within a limit.
  static expected<session> try_load(const ice_load_options &options) {
    return detail::wrapped<session, ice_session>([&](auto **p, auto *e) { return ice_session_load_with(&options, p, e); });
  }

  std::size_t size() const noexcept { return ice_session_len(get()); }
  expected<ice_memory> try_memory() const {
    ice_memory m;
    ice_memory_init(&m);
    if (ice_status s = ice_session_memory(get(), &m); s != ICE_OK) return failure(s);
    return m;
  }
  expected<layout> try_work_required(std::size_t rows, std::uint32_t nth = 1) const {
    layout l;
    if (ice_status s = ice_session_work_required(get(), rows, nth, &l.bytes, &l.align); s != ICE_OK) return failure(s);
    return l;
  }

  /// k [heads_kv, n, dim_k], v [heads_kv, n, dim_v]; unseen until commit.
  expected<void> try_append(const ice_tensor &k, const ice_tensor &v, std::size_t n, part p = {}) {
    return detail::call([&](auto *e) { return ice_session_append(get(), &k, &v, n, p.ith, p.nth, e); });
  }
  expected<void> try_commit() {
    return detail::call([&](auto *e) { return ice_session_commit_err(get(), e); });
  }
  /// q [heads_q, rows, dim_k], out [heads_q, rows, dim_v]; no mask: causal, the last row at the last token.
  expected<void> try_attend(const ice_tensor &q, std::size_t rows, const ice_tensor_mut &out,
                            const ice_mask *visible = nullptr, span<std::byte> work = {}, part p = {},
                            float *lse = nullptr, ice_attention_stats *stats = nullptr) const {
    return detail::call([&](auto *e) {
      return ice_session_attend(get(), &q, rows, visible, &out, lse, work.data(), work.size(), p.ith, p.nth, stats, e);
    });
  }
  expected<void> try_truncate(std::size_t tokens) {
    return detail::call([&](auto *e) { return ice_session_truncate_err(get(), tokens, e); });
  }
  expected<void> try_remove_range(std::size_t begin, std::size_t end) {
    return detail::call([&](auto *e) { return ice_session_remove_range_err(get(), begin, end, e); });
  }
  expected<void> try_reset() {
    return detail::call([&](auto *e) { return ice_session_reset_err(get(), e); });
  }
  expected<std::vector<std::uint8_t>> try_save() const {
    return detail::saved([&](void *b, std::size_t n, std::size_t *need) { return ice_session_save(get(), b, n, need); });
  }
  expected<void> try_save(writer write, void *user) const {
    return detail::call([&](auto *e) { return ice_session_save_to(get(), write, user, e); });
  }

#if ICEFORMER_EXCEPTIONS
  explicit session(const ice_session_options &options) : session(try_make(options).value()) {}
  session(span<std::byte> memory, const ice_session_options &options) : session(try_make_in(memory, options).value()) {}
  static layout required(const ice_session_options &options) { return try_required(options).value(); }
  static session load(span<const std::uint8_t> saved, const ice_allocator *allocator = nullptr) {
    return try_load(saved, allocator).value();
  }
  static session load(const ice_load_options &options) { return try_load(options).value(); }
  ice_memory memory() const { return try_memory().value(); }
  layout work_required(std::size_t rows, std::uint32_t nth = 1) const { return try_work_required(rows, nth).value(); }
  void append(const ice_tensor &k, const ice_tensor &v, std::size_t n, part p = {}) { try_append(k, v, n, p).value(); }
  void commit() { try_commit().value(); }
  void attend(const ice_tensor &q, std::size_t rows, const ice_tensor_mut &out, const ice_mask *visible = nullptr,
              span<std::byte> work = {}, part p = {}, float *lse = nullptr,
              ice_attention_stats *stats = nullptr) const {
    try_attend(q, rows, out, visible, work, p, lse, stats).value();
  }
  void truncate(std::size_t tokens) { try_truncate(tokens).value(); }
  void remove_range(std::size_t begin, std::size_t end) { try_remove_range(begin, end).value(); }
  void reset() { try_reset().value(); }
  std::vector<std::uint8_t> save() const { return try_save().value(); }
  void save(writer write, void *user) const { try_save(write, user).value(); }
#endif
};

} // namespace iceformer

#endif /* ICEFORMER_HPP */
