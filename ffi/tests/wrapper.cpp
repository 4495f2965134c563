// The C++ wrapper, each call once at least; built with and without exceptions by cpp_wrapper.rs.
#include <iceformer.hpp>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <type_traits>
#if __cplusplus >= 202002L
#include <span>
#endif

namespace ice = iceformer;

#define CHECK(what)                                                                                                    \
  do {                                                                                                                 \
    if (!(what)) {                                                                                                     \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                                                  \
      std::exit(1);                                                                                                    \
    }                                                                                                                  \
  } while (0)

template <class T, class... A> using can_make_span = std::is_constructible<ice::span<T>, A...>;
static_assert(can_make_span<const float, std::vector<float> &>::value, "a vector is a span");
static_assert(can_make_span<const float, const std::vector<float> &>::value, "a const vector is a span of const");
static_assert(!can_make_span<float, const std::vector<float> &>::value, "constness is kept");
static_assert(!can_make_span<const float, std::vector<double> &>::value, "elements are not converted");
static_assert(!std::is_copy_constructible_v<ice::index> && std::is_nothrow_move_constructible_v<ice::index>, "unique");
static_assert(!std::is_copy_constructible_v<ice::session> && std::is_nothrow_move_assignable_v<ice::session>, "unique");

static std::vector<float> numbers(std::size_t n, std::uint64_t seed) {
  std::vector<float> out(n);
  std::uint64_t x = seed * 2 + 1;
  for (float &f : out) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    f = static_cast<float>(x >> 40) / 8388608.0f - 1.0f;
  }
  return out;
}

// Memory aligned as the library wants it.
struct alignas(64) block {
  std::byte bytes[64];
};
struct region {
  explicit region(ice::layout l) : blocks((l.bytes + 63) / 64), bytes(l.bytes) { CHECK(l.align == 64); }
  operator ice::span<std::byte>() { return {blocks.data()->bytes, bytes}; }
  std::vector<block> blocks;
  std::size_t bytes;
};

static constexpr std::uint32_t DIM = 8;
static constexpr std::size_t KEYS = 40;

static bool same(const std::vector<ice_neighbor> &a, const std::vector<ice_neighbor> &b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); i++) {
    if (a[i].id != b[i].id || a[i].score != b[i].score) return false;
  }
  return true;
}

static void an_index() {
  const auto keys = numbers(KEYS * DIM, 1);
  auto made = ice::index::try_make(ice::index_options(DIM));
  CHECK(made);
  ice::index index = *std::move(made);
  CHECK(index && index.dim() == DIM && index.size() == 0);
  CHECK(index.try_reserve(KEYS) && index.capacity() >= KEYS);
  CHECK(index.try_insert(keys) && index.size() == KEYS);
  CHECK(index.try_memory() && index.try_memory()->used > KEYS * DIM * sizeof(float));

  const std::array<float, DIM> q = {1, 1, 0, 0, 0, 0, 0, 1};
  auto options = ice::query_options(5);
  options.visit_fraction = options.retrieve_fraction = 1;
  auto best = index.try_query(q, options);
  CHECK(best && best->size() == 5);
  std::vector<ice_neighbor> exact(5);
  std::vector<std::uint32_t> counts(1);
  CHECK(index.try_query_exact_into(q, options, exact, counts) && counts[0] == 5 && same(*best, exact));
  // k beyond the keys is cut, k 0 is the library's error.
  CHECK(index.try_query(q, 1000)->size() == KEYS);
  CHECK(index.try_query(q, 0).error().status() == ICE_ERR_ARGUMENT);

  auto scratch = ice::scratch::try_make(index);
  CHECK(scratch);
  std::vector<ice_neighbor> two(10);
  const auto queries = numbers(2 * DIM, 2);
  CHECK(index.try_query_into(queries, options, two, {}, &*scratch));
  auto roomy = ice::scratch::try_make_attention(index, 4);
  CHECK(roomy && index.try_query_into(queries, options, two, {}, &*roomy));
  CHECK(ice::scratch::try_make_attention(index, 0).error().status() == ICE_ERR_SHAPE);

  // Shapes are checked before anything is read.
  CHECK(index.try_insert(ice::span<const float>(keys.data(), DIM + 1)).error().status() == ICE_ERR_SHAPE);
  CHECK(index.try_query_into(queries, options, exact).error().status() == ICE_ERR_SHAPE);
  CHECK(index.try_query_into(queries, options, two, counts).error().status() == ICE_ERR_SHAPE);
  const std::uint64_t ids[] = {3, 100};
  CHECK(index.try_insert(keys, ids).error().status() == ICE_ERR_SHAPE);

  CHECK(index.try_remove(ids).error().status() == ICE_ERR_NOT_FOUND && index.size() == KEYS);
  CHECK(*index.try_remove_present(ids) == 1 && index.size() == KEYS - 1);
  CHECK(index.try_insert(ice::span<const float>(keys.data() + 3 * DIM, DIM), ice::span<const std::uint64_t>(ids, 1)));
  CHECK(same(*index.try_query(q, options), *best));

  auto saved = index.try_save();
  CHECK(saved);
  auto copy = ice::index::try_load(*saved);
  CHECK(copy && same(*copy->try_query(q, options), *best));
  auto view = ice::index::try_view(*saved);
  CHECK(view && same(*view->try_query(q, options), *best) && view->try_insert(q));
  (*saved)[saved->size() / 2] ^= 1;
  auto damaged = ice::index::try_load(*saved);
  CHECK(!damaged && damaged.error().status() == ICE_ERR_BUFFER && std::strstr(damaged.error().message(), "damaged"));

  auto small = ice::index_options(DIM);
  small.capacity = KEYS;
  region room(*ice::index::try_required(small));
  auto inside = ice::index::try_make_in(room, small);
  CHECK(inside && inside->try_insert(keys) && same(*inside->try_query(q, options), *best));
  CHECK(inside->try_insert(q).error().status() == ICE_ERR_CAPACITY);

  // Cells, cosine and a bitmap of ids are options like any other.
  auto cells = ice::index_options(DIM);
  cells.metric = ICE_METRIC_COSINE;
  cells.engine = ICE_ENGINE_CELLS;
  auto similar = ice::index::try_make(cells);
  CHECK(similar && similar->try_insert(keys));
  std::vector<std::uint8_t> visible(KEYS / 8);
  visible[0] = 0x0b;
  auto among = ice::query_options(5);
  among.filter = visible.data();
  among.filter_len = visible.size();
  auto three = similar->try_query(q, among);
  CHECK(three && three->size() == 3);
  for (const ice_neighbor &n : *three) CHECK((n.id == 0 || n.id == 1 || n.id == 3) && n.score <= 1.001f);
  among.engine = ICE_ENGINE_WALK;
  CHECK(similar->try_query(q, among).error().status() == ICE_ERR_UNSUPPORTED);

  // Moves leave an empty handle; self-made C handles can be taken over and given away.
  ice::index other = std::move(index);
  CHECK(other && other.size() == KEYS);
  ice_index *raw = other.release();
  CHECK(!other);
  other = ice::index(raw);
  CHECK(other.try_clear() && other.size() == 0);

  CHECK(other.try_fit(numbers(130 * DIM, 4)) && other.try_fit({}));
  CHECK(other.try_fit(queries).error().status() == ICE_ERR_ARGUMENT);
}

static constexpr std::size_t ROWS = 12;

static void attention_and_session() {
  constexpr std::uint32_t HQ = 4, HKV = 2;
  const auto q = numbers(HQ * ROWS * DIM, 3), k = numbers(HKV * ROWS * DIM, 4), v = numbers(HKV * ROWS * DIM, 5);
  std::vector<float> out(q.size()), lse(HQ * ROWS);
  auto d = ice::attention_desc();
  d.heads_q = HQ;
  d.heads_kv = HKV;
  d.dim_k = DIM;
  d.rows_q = d.rows_kv = ROWS;
  d.q = ice::tensor(q.data());
  d.k = ice::tensor(k.data());
  d.v = ice::tensor(v.data());
  d.out = ice::tensor_mut(out.data());
  d.lse = lse.data();
  d.mask.kind = ICE_MASK_CAUSAL;
  auto stats = ice::attention_stats();
  region work(*ice::try_attention_required(d));
  CHECK(ice::try_attention(d, work, &stats) && stats.pairs == HQ * ROWS * (ROWS + 1) / 2);
  CHECK(stats.rows_measured == 0 && stats.rows_exact == 0 && stats.known_pairs == 0 && std::isnan(stats.measured_error));
  // The first row sees one key: its value.
  for (std::size_t i = 0; i < DIM; i++) CHECK(out[i] == v[i]);
  d.dim_k = 0;
  CHECK(ice::try_attention(d).error().status() == ICE_ERR_ARGUMENT || ice::try_attention(d).error().status() == ICE_ERR_SHAPE);

  auto o = ice::session_options();
  o.heads_q = HQ;
  o.heads_kv = HKV;
  o.dim_k = DIM;
  o.capacity = ROWS;
  auto made = ice::session::try_make(o);
  CHECK(made);
  ice::session session = *std::move(made);
  // The same rows in two parts, appended and attended.
  for (std::uint32_t i = 0; i < 2; i++) {
    CHECK(session.try_append(ice::tensor(k.data()), ice::tensor(v.data()), ROWS, {i, 2}));
  }
  CHECK(session.size() == 0 && session.try_commit() && session.size() == ROWS);
  std::vector<float> again(q.size());
  region parts(*session.try_work_required(ROWS, 2));
  for (std::uint32_t i = 0; i < 2; i++) {
    CHECK(session.try_attend(ice::tensor(q.data()), ROWS, ice::tensor_mut(again.data()), nullptr, parts, {i, 2}));
  }
  for (std::size_t i = 0; i < out.size(); i++) CHECK(std::abs(out[i] - again[i]) < 1e-5f);
  const auto none = ice::mask();
  CHECK(session.try_attend(ice::tensor(q.data()), ROWS, ice::tensor_mut(again.data()), &none, {}, {}, lse.data()));

  std::vector<std::uint8_t> pieces;
  auto put = [](void *to, const void *from, std::size_t n) {
    auto *p = static_cast<const std::uint8_t *>(from);
    static_cast<std::vector<std::uint8_t> *>(to)->insert(static_cast<std::vector<std::uint8_t> *>(to)->end(), p, p + n);
    return n;
  };
  CHECK(session.try_save(put, &pieces) && pieces == *session.try_save());
  auto limited = ice::load_options();
  limited.data = pieces.data();
  limited.len = pieces.size();
  CHECK(ice::session::try_load(limited)->size() == session.size());
  limited.memory_limit = 1000;
  CHECK(ice::session::try_load(limited).error().status() == ICE_ERR_BUDGET);
  auto saved = session.try_save();
  auto copy = ice::session::try_load(*saved);
  CHECK(copy && copy->size() == ROWS);
  CHECK(session.try_remove_range(0, 2) && session.try_truncate(5) && session.size() == 5);
  CHECK(session.try_truncate(6).error().status() == ICE_ERR_ARGUMENT);
  CHECK(session.try_reset() && session.size() == 0 && session.try_memory()->used > 0);
  region room(*ice::session::try_required(o));
  CHECK(ice::session::try_make_in(room, o));

  // Halves of the keys, merged, are the whole: here both halves are the same single key.
  std::vector<float> a = {1, 2}, b = {3, 4}, la = {0}, lb = {0};
  CHECK(ice::try_attention_merge(a, la, b, lb) && std::abs(a[0] - 2) < 1e-6f && std::abs(a[1] - 3) < 1e-6f);
  CHECK(ice::try_attention_merge(a, la, b, {}).error().status() == ICE_ERR_SHAPE);
}

#if ICEFORMER_EXCEPTIONS
template <class F> static void throws(ice_status status, F &&f) {
  try {
    f();
  } catch (const ice::error &e) {
    CHECK(e.status() == status && e.what()[0] != '\0');
    return;
  }
  CHECK(false && "nothing was thrown");
}

static void exceptions() {
  const auto keys = numbers(KEYS * DIM, 1);
  ice::index index(ice::index_options(DIM));
  index.reserve(KEYS);
  index.insert(keys);
  ice::scratch scratch(index);
  std::vector<ice_neighbor> found(3), exact(3);
  auto options = ice::query_options(3);
  options.retrieve_fraction = 1;
  index.query_into(ice::span<const float>(keys.data(), DIM), options, found, {}, &scratch);
  index.query_exact_into(ice::span<const float>(keys.data(), DIM), options, exact);
  CHECK(same(found, exact) && same(index.query(ice::span<const float>(keys.data(), DIM), options), exact));
  const std::uint64_t more[] = {100}, gone[] = {7, 100, 101};
  index.insert(ice::span<const float>(keys.data(), DIM), more);
  throws(ICE_ERR_DUPLICATE, [&] { index.insert(ice::span<const float>(keys.data(), DIM), more); });
  throws(ICE_ERR_NOT_FOUND, [&] { index.remove(gone); });
  CHECK(index.remove_present(gone) == 2 && index.memory().used > 0);
  CHECK(ice::index::load(index.save()).size() == KEYS - 1);
  const auto bytes = index.save();
  CHECK(ice::index::view(bytes).size() == KEYS - 1);
  index.fit(numbers(130 * DIM, 4));
  index.remove(ice::span<const std::uint64_t>());
  index.clear();
  throws(ICE_ERR_ARGUMENT, [] { ice::index broken(ice::index_options(0)); });
  CHECK(ice::index::required(ice::index_options(DIM)).bytes > 0);

  auto o = ice::session_options();
  o.heads_kv = 1;
  o.dim_k = DIM;
  o.capacity = KEYS;
  ice::session session(o);
  session.append(ice::tensor(keys.data()), ice::tensor(keys.data()), KEYS);
  session.commit();
  throws(ICE_ERR_CAPACITY, [&] { session.append(ice::tensor(keys.data()), ice::tensor(keys.data()), 1); });
  throws(ICE_ERR_CAPACITY, [&] { session.commit(); });
  std::vector<float> out(DIM);
  session.attend(ice::tensor(keys.data()), 1, ice::tensor_mut(out.data()));
  CHECK(session.work_required(1).bytes > 0 && ice::session::load(session.save()).size() == KEYS);
  session.remove_range(0, 1);
  session.truncate(3);
  CHECK(session.size() == 3 && session.memory().used > 0 && ice::session::required(o).align == 64);
  session.reset();
  throws(ICE_ERR_STATE, [&] { session.attend(ice::tensor(keys.data()), 1, ice::tensor_mut(out.data())); });
}
#endif

int main() {
  an_index();
  attention_and_session();
#if ICEFORMER_EXCEPTIONS
  exceptions();
#endif
#if __cplusplus >= 202002L
  float one[DIM] = {};
  ice::span<const float> from_std = std::span<const float>(one);
  CHECK(from_std.size() == DIM && from_std.data() == one);
#endif
  std::puts("wrapper: ok");
}
