// SPDX-License-Identifier: Apache-2.0
// One tile of sums: `rows` pixels times `panels` times 16 channels, held in registers.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "_native/lowbit/product_kernels.hpp"
#include "_native/lowbit/unroll.hpp"

namespace {

using anybit::lowbit::panel_channels;
using anybit::lowbit::SumBlock;

constexpr int vector_block = 64;  // bytes of a packed vector: 16 channels of 32 bits

// Whether sums in registers are exact modulo 2^16: results of 16 bits need no wider ones.
template <class Isa>
constexpr bool wraps_at_16_bits = requires { Isa::wraps_at_16_bits; };

// Whether long reductions are computed in parts, whose weights and activations stay in the L1 cache
// for a block of pixels and some panels.
template <class Isa>
constexpr bool has_parts = requires { Isa::part_steps; };

template <class Sum>
[[gnu::always_inline]] inline Sum* sums_in(const SumBlock& at) {
  if constexpr (sizeof(Sum) == 2) return at.shorts;
  else return at.sums;
}

// Bytes of a panel between the weights in use and those that are read to the caches. Farther ahead
// is slower: the processor's own prefetching works within a page.
constexpr std::ptrdiff_t bytes_ahead = 2048;

// Sums over all segments and steps, and stores sums[row][16 * panel + channel]. Loops have
// compile-time indices (unroll.hpp), so that all sums are in registers.
template <class Isa, template <class> class SchemeOf, int rows, int panels, class Sum>
[[gnu::noinline]] void tile(const SumBlock& at, const std::byte* const* pixels, const std::byte* b,
                            Sum* out) {
  constexpr bool is_short = sizeof(Sum) == 2;
  using Scheme = SchemeOf<Isa>;
  using Vector = typename Isa::Vector;
  constexpr int words = Scheme::words, vectors = Scheme::vectors, sums = Scheme::sums;
  constexpr int parts = panel_channels / Isa::lanes;  // registers per panel
  constexpr int columns = panels * parts;
  const Scheme scheme(at.values);
  Vector sum[rows][columns][sums] = {};

  const std::byte* a[rows];
  repeat<rows>([&](int i) __attribute__((always_inline)) { a[i] = pixels[i]; });
  const std::ptrdiff_t panel = at.panel;
  // Weights of a single pixel are used once, and may come from memory: those of a later step are
  // read to the caches. After the end of these panels come the next ones.
  const std::byte *ahead = b, *const end = b + panel;
  const auto fetch_ahead = [&](std::ptrdiff_t bytes) __attribute__((always_inline)) {
    ahead += bytes;
    if (ahead == end) ahead += (panels - 1) * panel;
    repeat<panels * vectors>([&](int n) __attribute__((always_inline)) {
      __builtin_prefetch(ahead + n / vectors * panel + n % vectors * vector_block);
    });
  };
  if constexpr (rows == 1) fetch_ahead(std::min(bytes_ahead, panel));
  const auto run = [&](std::ptrdiff_t offset, int steps) __attribute__((always_inline)) {
    for (int k = 0; k < steps; ++k) {
      unroll<Scheme::phases>([&](auto phase) __attribute__((always_inline)) {
        Vector row[rows][Scheme::operands_a], column[columns][Scheme::operands_b];
        const auto load_row = [&](int i) __attribute__((always_inline)) {
          Vector word[words];
          repeat<words>([&](int w) __attribute__((always_inline)) {
            word[w] = Isa::broadcast(a[i] + offset + (phase * words + w) * 4);
          });
          scheme.expand(word, row[i]);
        };
        const auto load_column = [&](int j) __attribute__((always_inline)) {
          Vector packed[vectors];
          repeat<vectors>([&](int v) __attribute__((always_inline)) {
            packed[v] = Isa::load(b + j / parts * panel + v * vector_block +
                                  j % parts * (vector_block / parts));
          });
          scheme.template unpack<phase>(packed, column[j]);
        };
        // Operands of the shorter side stay in registers; those of the longer side are loaded one
        // by one.
        constexpr bool hold_columns = columns * Scheme::operands_b <= rows * Scheme::operands_a;
        if constexpr (hold_columns) {
          repeat<columns>(load_column);
          repeat<rows>([&](int i) __attribute__((always_inline)) {
            load_row(i);
            repeat<columns>([&](int j) __attribute__((always_inline)) {
              scheme.step(sum[i][j], row[i], column[j]);
            });
          });
        } else {
          repeat<rows>(load_row);
          repeat<columns>([&](int j) __attribute__((always_inline)) {
            load_column(j);
            repeat<rows>([&](int i) __attribute__((always_inline)) {
              scheme.step(sum[i][j], row[i], column[j]);
            });
          });
        }
      });
      if constexpr (rows == 1) fetch_ahead(vectors * vector_block);
      offset += Scheme::phases * words * 4;
      b += vectors * vector_block;
    }
  };

  if constexpr (!Isa::narrow || (is_short && wraps_at_16_bits<Isa>)) {
    for (int segment = 0; segment < at.segment_count; ++segment)
      run(at.segments[segment], at.steps);
    if constexpr (Scheme::has_extras) {
      static_assert(panels == 1, "each panel has its own extra steps");
      if (at.most_extras >= 0) {
        const std::byte* const offsets = b + std::ptrdiff_t{at.most_extras} * vector_block;
        const auto entry = [&](std::int64_t i) {
          std::int64_t number;
          std::memcpy(&number, offsets + i * 8, sizeof number);
          return number;
        };
        const std::int64_t count = entry(at.most_extras);
        for (std::int64_t i = 0; i < count; ++i) run(entry(i), 1);
      }
    }
  } else {
    // Wide sums are in memory while narrow sums are in registers.
    alignas(64) Vector wide[rows][columns][sums] = {};
    const auto widen = [&]() __attribute__((always_inline)) {
      repeat<rows * columns * sums>([&](int n) __attribute__((always_inline)) {
        Vector &narrow = sum[n / sums / columns][n / sums % columns][n % sums],
               &total = wide[n / sums / columns][n / sums % columns][n % sums];
        total = Isa::add(total, Isa::widened(narrow));
        narrow = Vector{};
      });
    };
    int room = at.narrow_steps;  // steps that narrow sums still hold
    for (int segment = 0; segment < at.segment_count; ++segment)
      for (int k = 0; k < at.steps;) {
        const int here = std::min(room, at.steps - k);
        run(at.segments[segment] + std::ptrdiff_t{k} * (Scheme::phases * words * 4), here);
        k += here, room -= here;
        if (room > 0) continue;
        widen();
        room = at.narrow_steps;
      }
    widen();
    repeat<rows * columns * sums>([&](int n) __attribute__((always_inline)) {
      sum[n / sums / columns][n / sums % columns][n % sums] =
          wide[n / sums / columns][n / sums % columns][n % sums];
    });
  }
  // Copies: stores might change what `at` has.
  const std::ptrdiff_t stride = at.stride;
  [[maybe_unused]] const bool adds = at.adds;
  if constexpr (is_short) {
    repeat<rows * panels>([&](int n) __attribute__((always_inline)) {
      const int i = n / panels, panel_of = n % panels;
      Vector results[parts];
      repeat<parts>([&](int j) __attribute__((always_inline)) {
        results[j] = Scheme::result(sum[i][panel_of * parts + j]);
      });
      Sum* const to = out + i * stride + panel_of * panel_channels;
      if constexpr (has_parts<Isa>)
        if (adds) return Isa::add_shorts(to, results);
      Isa::store_shorts(to, results);
    });
  } else {
    repeat<rows * columns>([&](int n) __attribute__((always_inline)) {
      const int i = n / columns, j = n % columns;
      Sum* const to = out + i * stride + j * Isa::lanes;
      Vector result = Scheme::result(sum[i][j]);
      if constexpr (has_parts<Isa>)
        if (adds) result = Isa::add(result, Isa::load_any(to));
      Isa::store(to, result);
    });
  }
}

// Sums of a block of pixels and adjacent panels, tile by tile; the weights of a tile stay cached
// for all pixels.
template <class Isa, template <class> class SchemeOf, int most_rows, int most_panels,
          int single_panels, class Sum = std::int32_t>
void sums_of_part(const SumBlock& at) {
  const auto some_rows = [&]<int rows, int panels>(const std::byte* b, int& pixel,
                                                   Sum* out) __attribute__((always_inline)) {
    for (; pixel + rows <= at.count; pixel += rows)
      tile<Isa, SchemeOf, rows, panels, Sum>(at, at.pixels + pixel, b, out + pixel * at.stride);
  };
  const auto some_panels = [&]<int panels>(int panel) __attribute__((always_inline)) {
    const std::byte* const b = at.weights + panel * at.panel;
    Sum* const out = sums_in<Sum>(at) + panel * panel_channels;
    int pixel = 0;
    some_rows.template operator()<most_rows, panels>(b, pixel, out);
    if constexpr (most_rows > 4) some_rows.template operator()<4, panels>(b, pixel, out);
    if constexpr (most_rows > 2) some_rows.template operator()<2, panels>(b, pixel, out);
    some_rows.template operator()<1, panels>(b, pixel, out);
  };
  int panel = 0;
  if (at.count == 1) {
    int pixel = 0;
    for (; panel + single_panels <= at.panels; panel += single_panels, pixel = 0)
      some_rows.template operator()<1, single_panels>(at.weights + panel * at.panel, pixel,
                                                      sums_in<Sum>(at) + panel * panel_channels);
  }
  for (; panel + most_panels <= at.panels; panel += most_panels)
    some_panels.template operator()<most_panels>(panel);
  if constexpr (most_panels > 2)
    for (; panel + 2 <= at.panels; panel += 2) some_panels.template operator()<2>(panel);
  if constexpr (most_panels > 1)
    for (; panel < at.panels; ++panel) some_panels.template operator()<1>(panel);
}

// Calls `sums` on parts of the reduction axis, which add up.
template <class Isa, class Scheme, int part_steps, class Sums>
void sum_by_parts(const SumBlock& at, Sums&& sums) {
  constexpr std::ptrdiff_t a_step = Scheme::phases * Scheme::words * 4,
                           b_step = Scheme::vectors * vector_block;
  const int parts = (at.steps + part_steps - 1) / part_steps;  // of a segment
  const int together = parts > 1 ? 1 : part_steps / at.steps;  // segments
  const auto start_of = [&](int i) { return static_cast<int>(std::int64_t{at.steps} * i / parts); };
  SumBlock part = at;
  for (int segment = 0; segment < at.segment_count; segment += together)
    for (int i = 0; i < parts; ++i) {
      const int first = start_of(i);
      const std::ptrdiff_t offset = at.segments[segment] + first * a_step;
      part.segments = parts > 1 ? &offset : at.segments + segment;
      part.segment_count = std::min(together, at.segment_count - segment);
      part.steps = start_of(i + 1) - first;
      part.weights = at.weights + (std::ptrdiff_t{segment} * at.steps + first) * b_step;
      const bool is_last = segment + together >= at.segment_count && i + 1 == parts;
      part.most_extras = is_last ? at.most_extras : -1;
      sums(part);
      part.adds = true;
    }
}

template <class Isa, template <class> class SchemeOf, int most_rows, int most_panels,
          int single_panels, class Sum = std::int32_t>
void sums(const SumBlock& at) {
  const auto sums_of = sums_of_part<Isa, SchemeOf, most_rows, most_panels, single_panels, Sum>;
  if constexpr (has_parts<Isa>)
    if (at.count >= 2 * most_rows &&
        std::int64_t{at.segment_count} * at.steps > 2 * Isa::part_steps)
      return sum_by_parts<Isa, SchemeOf<Isa>, Isa::part_steps>(at, sums_of);
  sums_of(at);
}

}  // namespace
