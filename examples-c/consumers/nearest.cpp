// The same through the C++ wrapper.
#include <iceformer.hpp>

#include <cstdio>

int main() {
  const float keys[] = {1, 0, 0, 1, 2, 1, -1, 3}, query[] = {1, 1};
  try {
    iceformer::index index(iceformer::index_options(2));
    index.insert(keys);
    for (const ice_neighbor &n : index.query(query, 2)) std::printf("%d %.1f\n", static_cast<int>(n.id), n.score);
  } catch (const iceformer::error &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
