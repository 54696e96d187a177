// SPDX-License-Identifier: Apache-2.0
// Dot products in AMX tiles: 16 pixels x 16 channels x 64 bytes at a time. All other kernels are
// those of AVX-512.
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own headers start some intrinsics from a vector that is undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "_native/isa/levels.hpp"
#include "_native/lowbit/product_kernels.hpp"
#include "_native/lowbit/scratch.hpp"
#include "_native/lowbit/unroll.hpp"
#include "isa_avx512.hpp"
#include "schemes.hpp"

namespace {

using anybit::Level;
using anybit::lowbit::panel_channels;
using anybit::lowbit::ProductKernels;
using anybit::lowbit::Scheme;
using anybit::lowbit::SumBlock;

constexpr int tile_rows = 16, tile_width = 64;
constexpr std::ptrdiff_t tile_size = tile_rows * tile_width;
// With fewer pixels most of a tile is empty, and loading weights dominates.
constexpr int fewest_pixels = 6;
// Prefetch distance in tiles, for weights with more than this number of bytes per panel.
constexpr int tiles_ahead = 8;
constexpr std::ptrdiff_t far_panel = 32 * 1024;
constexpr int most_tiles = anybit::lowbit::most_block_pixels / tile_rows;

struct Local {
  Scratch pixels, weights;
  const std::byte* spread = nullptr;  // weights that are unpacked to bytes already
  bool configured = false;
};
thread_local Local local;

// Sixteen rows of A in memory.
struct Rows {
  int first;
  const std::byte* base;
  std::ptrdiff_t stride;
  bool packed;  // copied segment by segment instead of in place
};

struct Walk {
  const SumBlock& at;
  std::ptrdiff_t segment_bytes;
  std::ptrdiff_t packed_row() const {
    // Not a power of two: the rows of a tile should map to different cache sets.
    return at.segment_count * segment_bytes + tile_width;
  }

  // Uses windows in place if their stride is constant, and copies them otherwise.
  Rows rows(int first, std::byte* copy) const {
    const int count = at.count - first < tile_rows ? at.count - first : tile_rows;
    const std::byte* const* const windows = at.pixels + first;
    const std::ptrdiff_t stride = windows[1 < count ? 1 : 0] - windows[0];
    bool even = count == tile_rows;
    for (int i = 1; i < count && even; ++i) even = windows[i] - windows[i - 1] == stride;
    if (even) return {first, windows[0], stride, false};
    for (int i = 0; i < count; ++i) {
      std::byte* to = copy + i * packed_row();
      for (int segment = 0; segment < at.segment_count; ++segment) {
        const std::byte* const from = windows[i] + at.segments[segment];
        for (std::ptrdiff_t k = 0; k < segment_bytes; k += tile_width, to += tile_width)
          _mm512_store_si512(to, _mm512_loadu_si512(from + k));
      }
    }
    return {first, copy, packed_row(), true};
  }
};

// Compiler barrier: GCC does not know that tile instructions read memory.
void settle_memory() { asm volatile("" ::: "memory"); }

void configure() {
  struct {
    std::uint8_t palette = 1, start = 0, reserved[14] = {};
    std::uint16_t bytes[16] = {};
    std::uint8_t rows[16] = {};
  } shapes;
  static_assert(sizeof shapes == 64);
  for (int i = 0; i < 8; ++i) shapes.bytes[i] = tile_width, shapes.rows[i] = tile_rows;
  settle_memory();
  _tile_loadconfig(&shapes);
  local.configured = true;
}

void end() {
  if (local.configured) _tile_release();
  local.configured = false;
}

// Tiles 0 to 3 are sums, 4 and 5 pixels, 6 and 7 weights. Tile numbers must be literals.
template <int halves, int panels>
void multiply(const Walk& walk, const Rows* rows, const std::byte* b, std::ptrdiff_t panel,
              std::int32_t* out, bool ahead) {
  const SumBlock& at = walk.at;
  settle_memory();
  _tile_zero(0);
  if constexpr (panels > 1) _tile_zero(1);
  if constexpr (halves > 1) _tile_zero(2);
  if constexpr (halves > 1 && panels > 1) _tile_zero(3);
  const std::byte* a0 = rows[0].base;
  const std::byte* a1 = rows[halves - 1].base;
  const std::ptrdiff_t stride0 = rows[0].stride, stride1 = rows[halves - 1].stride;
  for (int segment = 0; segment < at.segment_count; ++segment) {
    const std::ptrdiff_t packed = segment * walk.segment_bytes;
    const std::byte* p0 = a0 + (rows[0].packed ? packed : at.segments[segment]);
    const std::byte* p1 = a1 + (rows[halves - 1].packed ? packed : at.segments[segment]);
    for (std::ptrdiff_t k = 0; k < walk.segment_bytes; k += tile_width, b += tile_size) {
      if (ahead)
        for (int line = 0; line < tile_rows; ++line) {
          _mm_prefetch(b + tiles_ahead * tile_size + line * tile_width, _MM_HINT_T0);
          if constexpr (panels > 1)
            _mm_prefetch(b + panel + tiles_ahead * tile_size + line * tile_width, _MM_HINT_T0);
        }
      _tile_loadd(6, b, tile_width);
      _tile_loadd(4, p0 + k, stride0);
      _tile_dpbusd(0, 4, 6);
      if constexpr (halves > 1) {
        _tile_loadd(5, p1 + k, stride1);
        _tile_dpbusd(2, 5, 6);
      }
      if constexpr (panels > 1) {
        _tile_loadd(7, b + panel, tile_width);
        _tile_dpbusd(1, 4, 7);
        if constexpr (halves > 1) _tile_dpbusd(3, 5, 7);
      }
    }
  }
  const std::ptrdiff_t stride = at.stride * 4;
  std::int32_t* const out0 = out + rows[0].first * at.stride;
  std::int32_t* const out1 = out + rows[halves - 1].first * at.stride;
  _tile_stored(0, out0, stride);
  if constexpr (panels > 1) _tile_stored(1, out0 + panel_channels, stride);
  if constexpr (halves > 1) _tile_stored(2, out1, stride);
  if constexpr (halves > 1 && panels > 1) _tile_stored(3, out1 + panel_channels, stride);
}

// Unpacks weights of a few bits to bytes.
template <template <class> class Packed>
void spread(const SumBlock& at, std::byte* to) {
  constexpr int vectors = Packed<Avx512Base>::vectors;
  const Packed<Avx512Base> weights(at.values);
  for (int panel = 0; panel < at.panels; ++panel) {
    const std::byte* from = at.weights + panel * at.panel;
    for (int step = at.segment_count * at.steps; step > 0; --step, from += vectors * tile_width) {
      __m512i packed[vectors];
      repeat<vectors>([&](int v) __attribute__((always_inline)) {
        packed[v] = _mm512_load_si512(from + v * tile_width);
      });
      unroll<Packed<Avx512Base>::phases>([&](auto phase) __attribute__((always_inline)) {
        __m512i bytes[1];
        weights.template unpack<phase>(packed, bytes);
        _mm512_store_si512(to, bytes[0]);
        to += tile_width;
      });
    }
  }
}

template <Scheme scheme, template <class> class Packed>
void sums(const SumBlock& at) {
  constexpr int bits = anybit::lowbit::bits_of_index(scheme);
  constexpr std::ptrdiff_t values = anybit::lowbit::values_per_step(scheme);
  const Walk walk{at, at.steps * values};
  const std::ptrdiff_t panel =
      at.panel / anybit::lowbit::bytes_per_step(scheme) * values * panel_channels;
  const auto narrower = [&] {
    anybit::compiled<ProductKernels, Level::avx512vpopcnt>().sums[static_cast<std::size_t>(scheme)](
        at);
  };
  if (at.fresh_weights) local.spread = nullptr;
  if (at.count < fewest_pixels) return narrower();
  const std::ptrdiff_t copy_size = walk.packed_row() * tile_rows;
  const int tiles = (at.count + tile_rows - 1) / tile_rows;
  std::byte* const copies = local.pixels.get(static_cast<std::size_t>(copy_size * tiles));
  const std::byte* weights = at.weights;
  if constexpr (bits < 8) {
    std::byte* const bytes = local.weights.get(static_cast<std::size_t>(panel * at.panels));
    if (bytes != nullptr && local.spread != at.weights) {
      spread<Packed>(at, bytes);
      local.spread = at.weights;
    }
    weights = bytes;
  }
  if (copies == nullptr || weights == nullptr) return narrower();
  if (!local.configured) configure();
  Rows rows[most_tiles];
  for (int i = 0; i < tiles; ++i)
    // The last tile overlaps the previous one, which may save a copy.
    rows[i] = walk.rows(std::max(0, std::min(i * tile_rows, at.count - tile_rows)),
                        copies + i * copy_size);
  // The weights of two panels stay cached for all pixels.
  for (int p = 0; p < at.panels; p += 2) {
    const std::byte* const b = weights + p * panel;
    std::int32_t* const out = at.sums + p * panel_channels;
    for (int i = 0; i < tiles; i += 2) {
      const bool ahead = bits == 8 && i == 0 && panel >= far_panel;
      const bool two = i + 1 < tiles;
      if (p + 1 < at.panels)
        two ? multiply<2, 2>(walk, rows + i, b, panel, out, ahead)
            : multiply<1, 2>(walk, rows + i, b, panel, out, ahead);
      else
        two ? multiply<2, 1>(walk, rows + i, b, panel, out, ahead)
            : multiply<1, 1>(walk, rows + i, b, panel, out, ahead);
    }
  }
}

}  // namespace

template <>
const ProductKernels& anybit::compiled<ProductKernels, anybit::Level::amx>() {
  static const ProductKernels all = [] {
    ProductKernels kernels = compiled<ProductKernels, Level::avx512vpopcnt>();
    const auto sums_of = [&](Scheme scheme) -> auto& {
      return kernels.sums[static_cast<std::size_t>(scheme)];
    };
    sums_of(Scheme::dot8) = sums<Scheme::dot8, Dot8>;
    sums_of(Scheme::dot4) = sums<Scheme::dot4, Dot4>;
    sums_of(Scheme::dot3) = sums<Scheme::dot3, Dot3>;
    sums_of(Scheme::dot2) = sums<Scheme::dot2, Dot2>;
    sums_of(Scheme::dot1) = sums<Scheme::dot1, Dot1>;
    kernels.dot_bytes = tile_width;
    kernels.spreads_weights = true;
    kernels.block_pixels = most_tiles * tile_rows;
    kernels.wants_even_windows = true;
    kernels.end = end;
    return kernels;
  }();
  return all;
}
