// SPDX-License-Identifier: Apache-2.0
// Sums over blocks of channels: exact in 32 bits within a block, then scaled and added in float32.
#pragma once
#include "_native/lowbit/block_layout.hpp"
#include "_native/lowbit/lanes.hpp"
#include "_native/lowbit/product_kernels.hpp"
#include "instructions.hpp"
#include "tile.hpp"

namespace {

using anybit::lowbit::BlockSums;

// How a level multiplies indices of weights, 0..2^bits - 1, with signed bytes.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
template <int bits>
using BlockDots = Dots;
#elif defined(__AVX512F__)
template <int bits>
using BlockDots = std::conditional_t<(bits <= 4), Avx512Short, Avx512>;
#elif defined(__AVX2__)
template <int bits>
using BlockDots = std::conditional_t<(bits <= 4), Avx2Short, Avx2>;
#elif defined(__SSE4_1__)
template <int bits>
using BlockDots = std::conditional_t<(bits <= 4), Sse4Short, Sse4>;
#elif defined(__ARM_NEON)
template <int bits>
using BlockDots = std::conditional_t<(bits < 8), Neon, Portable>;
#else
template <int bits>
using BlockDots = Portable;
#endif

template <class Isa>
constexpr bool has_dot = requires(typename Isa::Vector v) { Isa::dot(v, v, v); };

// sum + the products of four unsigned and four signed bytes per lane.
template <int bits, class Vector>
[[gnu::always_inline]] inline Vector block_dot(const Vector& sum, const Vector& u8,
                                               const Vector& s8) {
  using Isa = BlockDots<bits>;
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  constexpr bool is_exact = true;
#else
  constexpr bool is_exact = bits < 8;  // sums of two products may exceed 16 bits
#endif
  if constexpr (has_dot<Isa> && is_exact) return Isa::dot(sum, u8, s8);
  else
    return Isa::dot16(Isa::dot16(sum, Isa::even_u8(u8), Isa::even_s8(s8)), Isa::odd_u8(u8),
                      Isa::odd_s8(s8));
}

using ByteRegister [[gnu::vector_size(register_bytes)]] = std::uint8_t;

// Bits [from, from + bits) of each byte, moved to bit `to`.
template <int from, int bits, int to, class Vector>
[[gnu::always_inline]] inline Vector moved_bits(const Vector& packed) {
  constexpr std::uint16_t mask = ((1 << bits) - 1) << to;
  const auto halves = UnsignedShortRegister(packed);
  const UnsignedShortRegister masks = UnsignedShortRegister{} + std::uint16_t(mask << 8 | mask);
  if constexpr (from >= to) return Vector((halves >> (from - to)) & masks);
  else return Vector((halves << (to - from)) & masks);
}

// The indices of weights of a step in a group of `steps`; `load(v)` returns vector v.
template <int bits, int steps, int step, int to = 0, int first = 0, class Load>
[[gnu::always_inline]] inline auto block_weights(Load&& load) {
  constexpr int plane = low_plane(bits), phases = 8 / plane;
  const auto packed = load(first + step / phases);
  if constexpr (plane == 8) return packed;
  else {
    const auto low = moved_bits<step % phases * plane, plane, to>(packed);
    if constexpr (bits == plane) return low;
    else {
      constexpr int next = first + plane_vectors(plane, steps);
      const auto high = block_weights<bits - plane, steps, step, to + plane, next>(load);
      return decltype(low)(low | high);
    }
  }
}

// Bytes of zero-points between those in use and those that are read to the caches.
constexpr std::ptrdiff_t zeros_ahead = 128;

// wide + the sums of 16 bits in narrow, of levels that have some.
template <class Isa, class Vector>
[[gnu::always_inline]] inline void add_narrow([[maybe_unused]] Vector& wide,
                                              [[maybe_unused]] const Vector& narrow) {
  if constexpr (Isa::narrow) wide = Isa::add(wide, Isa::widened(narrow));
}

// The zero-points of the channels of a register.
[[gnu::always_inline]] inline UnsignedRegister widened_zeros(const std::byte* from) {
#if defined(__AVX512F__)
  return UnsignedRegister(_mm512_cvtepu8_epi32(read<__m128i>(from)));
#elif defined(__AVX2__)
  return UnsignedRegister(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#elif defined(__SSE4_1__)
  return UnsignedRegister(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(read<std::int32_t>(from))));
#else
  using Bytes [[gnu::vector_size(register_bytes / 4)]] = std::uint8_t;
  return __builtin_convertvector(read<Bytes>(from), UnsignedRegister);
#endif
}

// sum - zero-point * the sum of the codes of a block, for each channel. The latter becomes a factor
// once: on x86 two integers of 16 bits, which one instruction multiplies by the zero-point and 128
// times that. They hold sums of 2^14 codes.
#if defined(__SSE4_1__)
template <class Number>
[[gnu::always_inline]] inline Number zero_factor(Number code_sum) {
  const Number opposite = 0u - code_sum;
  return (opposite & 127u) | ((opposite << 9) & 0xffff0000u);
}

template <class Isa>
[[gnu::always_inline]] inline UnsignedRegister less_zeros(UnsignedRegister sum,
                                                          UnsignedRegister zero_points,
                                                          UnsignedRegister factor) {
  using Vector = typename Isa::Vector;
  const UnsignedRegister both = zero_points | (zero_points << 23);
  return UnsignedRegister(Isa::dot_words(Vector(sum), Vector(both), Vector(factor)));
}
#else
template <class Number>
[[gnu::always_inline]] inline Number zero_factor(Number code_sum) {
  return 0u - code_sum;
}

template <class Isa>
[[gnu::always_inline]] inline UnsignedRegister less_zeros(UnsignedRegister sum,
                                                          UnsignedRegister zero_points,
                                                          UnsignedRegister factor) {
  return sum + zero_points * factor;
}
#endif

// Sums of `rows` pixels times `panels` panels. Several pixels are prepared.
template <int bits, int rows, int panels>
[[gnu::noinline]] void block_tile(const BlockSums& block, int first, int panel_number, float* out) {
  using Isa = BlockDots<bits>;
  using Vector = typename Isa::Vector;
  constexpr int parts = panel_channels / Isa::lanes, columns = panels * parts;
  const BlockSums at = block;
  const std::byte* a[rows];
  constexpr bool prepared = rows > 1;
  repeat<rows>([&](int i) __attribute__((always_inline)) {
    a[i] = prepared ? at.prepared + (first + i) * at.prepared_bytes : at.pixels[first + i];
  });
  const std::ptrdiff_t panel = at.panel;
  const std::byte *b = at.weights + panel_number * panel, *next = b;
  const std::byte* const zeros =
      at.zero_points == nullptr
          ? nullptr
          : at.zero_points + std::ptrdiff_t{panel_number} * at.blocks * panel_channels;
  const auto place = [&](int j) __attribute__((always_inline)) {
    return b + j / parts * panel + j % parts * static_cast<int>(sizeof(Vector));
  };
  const ByteRegister offset = ByteRegister{} + at.offset;
  FloatRegister totals[rows][columns] = {};
  for (int number = 0; number < at.blocks; ++number) {
    const bool is_last = number + 1 == at.blocks;
    const int steps = is_last ? at.last_steps : at.steps;
    const std::int32_t* ones = is_last ? at.last_ones : at.ones;
    const std::ptrdiff_t start = number * at.block;
    std::ptrdiff_t done = 0;
    Vector sums[rows][columns] = {}, codes[rows] = {};
    const auto add_group = [&]<int count>() __attribute__((always_inline)) {
      Vector some[rows][columns] = {}, some_codes[rows] = {};
      const auto target = [&](Vector& wide, Vector& narrow)
                              __attribute__((always_inline)) -> Vector& {
        if constexpr (Isa::narrow) return narrow;
        else return wide;
      };
      unroll<count>([&](auto step) __attribute__((always_inline)) {
        Vector row[rows];
        repeat<rows>([&](int i) __attribute__((always_inline)) {
          row[i] = Isa::broadcast(a[i] + start + done + step * 4);
          if constexpr (!prepared) {
            row[i] = Vector(ByteRegister(row[i]) + offset);
            Vector& sum = target(codes[i], some_codes[i]);
            sum = block_dot<bits>(sum, Isa::broadcast(ones + step), row[i]);
          }
        });
        repeat<columns>([&](int j) __attribute__((always_inline)) {
          const Vector column =
              block_weights<bits, count, step>([&](int v) __attribute__((always_inline)) {
                return Isa::load(place(j) + v * vector_block);
              });
          repeat<rows>([&](int i) __attribute__((always_inline)) {
            Vector& sum = target(sums[i][j], some[i][j]);
            sum = block_dot<bits>(sum, column, row[i]);
          });
        });
      });
      repeat<rows>([&](int i) __attribute__((always_inline)) {
        add_narrow<Isa>(codes[i], some_codes[i]);
        repeat<columns>(
            [&](int j) __attribute__((always_inline)) { add_narrow<Isa>(sums[i][j], some[i][j]); });
      });
      if constexpr (rows == 1)
        repeat<panels * group_vectors(bits, count)>([&](int v) __attribute__((always_inline)) {
          constexpr int vectors = group_vectors(bits, count);
          __builtin_prefetch(b + v / vectors * panel + v % vectors * vector_block + bytes_ahead);
        });
      b += group_vectors(bits, count) * vector_block;
      done += count * 4, ones += count;
    };
    for (int k = steps; k >= 8; k -= 8) add_group.template operator()<8>();
    if (steps % 8 != 0) add_group.template operator()<4>();
    if constexpr (rows == 1)
      repeat<panels>([&](int j) __attribute__((always_inline)) {
        __builtin_prefetch(b + j * panel + bytes_ahead);
      });
    const auto add_scaled = [&]<bool asymmetric>() __attribute__((always_inline)) {
      UnsignedRegister zero_points[columns];
      if constexpr (asymmetric)
        repeat<columns>([&](int j) __attribute__((always_inline)) {
          const std::ptrdiff_t block = std::ptrdiff_t{j / parts} * at.blocks + number;
          const std::byte* const from = zeros + block * panel_channels + j % parts * Isa::lanes;
          zero_points[j] = widened_zeros(from);
          if (rows == 1 && j % parts == 0) __builtin_prefetch(from + zeros_ahead);
        });
      repeat<rows>([&](int i) __attribute__((always_inline)) {
        UnsignedRegister lows = wrapping(IntRegister(codes[i]));
        if constexpr (prepared)
          lows += static_cast<std::uint32_t>(at.code_sums[(first + i) * at.blocks + number]);
        if constexpr (!asymmetric) lows *= static_cast<std::uint32_t>(at.lowest);
        else if constexpr (!prepared) lows = zero_factor(lows);
        repeat<columns>([&](int j) __attribute__((always_inline)) {
          UnsignedRegister sum = wrapping(IntRegister(sums[i][j]));
          if constexpr (asymmetric) sum = less_zeros<Isa>(sum, zero_points[j], lows);
          else sum += lows;
          if (at.zeros != nullptr)
            sum -= wrapping(read<IntRegister>(place(j) + vector_block)) *
                   static_cast<std::uint32_t>(at.zeros[first + i]);
          const FloatRegister scales = read<FloatRegister>(place(j));
          totals[i][j] += __builtin_convertvector(IntRegister(sum), FloatRegister) * scales;
        });
      });
    };
    if (zeros != nullptr) add_scaled.template operator()<true>();
    else add_scaled.template operator()<false>();
    next += at.bytes, b = next;
  }
  repeat<rows>([&](int i) __attribute__((always_inline)) {
    repeat<columns>([&](int j) __attribute__((always_inline)) {
      write(out + i * at.stride + j * Isa::lanes, totals[i][j]);
    });
  });
}

#if defined(__AVX512F__)
constexpr int most_block_rows = 4, most_row_panels = 2, most_block_panels = 4;
#elif defined(__AVX2__)
constexpr int most_block_rows = 2, most_row_panels = 1, most_block_panels = 2;
#else
constexpr int most_block_rows = 1, most_row_panels = 1, most_block_panels = 1;
#endif

// Sums of the panels from `panel` to `end`, `panels` at a time and then fewer.
template <int bits, int rows, int panels>
[[gnu::always_inline]] inline void block_panels(const BlockSums& at, int row, int panel, int end) {
  float* const out = at.sums + row * at.stride;
  for (; panel + panels <= end; panel += panels)
    block_tile<bits, rows, panels>(at, row, panel, out + panel * panel_channels);
  if constexpr (panels > 1) block_panels<bits, rows, panels / 2>(at, row, panel, end);
}

// Turns the indices of a pixel into signed bytes, and adds these up by blocks, as factors of
// zero-points if there are some.
void prepare_blocks(const BlockSums& at, const std::byte* indices, std::int64_t depth,
                    std::byte* to, std::int32_t* sums) {
  const auto* const from = reinterpret_cast<const std::uint8_t*>(indices);
  auto* const bytes = reinterpret_cast<std::int8_t*>(to);
  const std::uint8_t offset = at.offset;
  for (std::int64_t i = 0; i < depth; ++i)
    bytes[i] = static_cast<std::int8_t>(static_cast<std::uint8_t>(from[i] + offset));
  for (std::int64_t start = 0; start < depth; start += at.block) {
    const std::int64_t end = std::min<std::int64_t>(start + at.block, depth);
    std::int32_t sum = 0;
    for (std::int64_t i = start; i < end; ++i) sum += bytes[i];
    const auto code_sum = static_cast<std::uint32_t>(sum);
    *sums++ = at.zero_points == nullptr ? sum : static_cast<std::int32_t>(zero_factor(code_sum));
  }
}

template <int bits>
void block_sums(const BlockSums& at) {
  for (int panel = 0; panel < at.panels; panel += most_block_panels) {
    const int end = std::min(panel + most_block_panels, at.panels);
    int row = 0;
    if constexpr (most_block_rows > 1)
      for (; at.prepared != nullptr && row + most_block_rows <= at.count; row += most_block_rows)
        block_panels<bits, most_block_rows, most_row_panels>(at, row, panel, end);
    for (; row < at.count; ++row) block_panels<bits, 1, most_block_panels>(at, row, panel, end);
  }
}

template <class = void>
constexpr void set_blocks(anybit::lowbit::ProductKernels& kernels) {
  kernels.block_rows = most_block_rows;
  kernels.prepare_blocks = prepare_blocks;
  kernels.blocks = {block_sums<1>, block_sums<2>, block_sums<3>, block_sums<4>,
                    block_sums<5>, block_sums<6>, block_sums<8>, block_sums<8>};
}

}  // namespace
