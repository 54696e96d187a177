// SPDX-License-Identifier: Apache-2.0
// The 16 channels of a panel in as many registers as the ISA level needs. Types wider than a
// register would travel through memory, so each operation runs register by register. Operators come
// from the vector extensions of GCC and Clang; intrinsics stand where compilers generate worse
// code.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

#include "_native/isa/register_bytes.hpp"
#include "unroll.hpp"

namespace {

constexpr int lane_count = 16;

using IntRegister [[gnu::vector_size(register_bytes)]] = std::int32_t;
using FloatRegister [[gnu::vector_size(register_bytes)]] = float;
using ShortRegister [[gnu::vector_size(register_bytes)]] = std::int16_t;
using ByteLanes [[gnu::vector_size(16)]] = std::uint8_t;
constexpr int register_count = 64 / register_bytes;

// 64 bytes of numbers.
template <class Register>
struct Registers {
  Register parts[register_count];
};
using Lanes = Registers<IntRegister>;     // 16 channels, 32 bits each
using Reals = Registers<FloatRegister>;   // 16 channels
using Shorts = Registers<ShortRegister>;  // 32 channels, 16 bits each

// Returns function(i) for each register i.
template <class Vector, class Function>
[[gnu::always_inline]] inline Vector map_registers(Function&& function) {
  Vector result;
  repeat<register_count>([&](int i)
                             __attribute__((always_inline)) { result.parts[i] = function(i); });
  return result;
}

template <class Vector>
[[gnu::always_inline]] inline Vector read(const void* at) {
  Vector vector;
  std::memcpy(&vector, at, sizeof vector);
  return vector;
}

template <class Vector>
[[gnu::always_inline]] inline void write(void* at, const Vector& vector) {
  // GCC may copy bytes half by half in general registers.
  using Unaligned [[gnu::aligned(1), gnu::may_alias]] = Vector;
  *static_cast<Unaligned*>(at) = vector;
}

template <class Vector>
concept IsRegisters = requires(Vector vector) { vector.parts[register_count - 1]; };

template <IsRegisters Vector>
[[gnu::always_inline]] inline Vector read(const void* at) {
  const auto* const bytes = static_cast<const std::byte*>(at);
  return map_registers<Vector>([&](int i) __attribute__((always_inline)) {
    return read<decltype(Vector{}.parts[0] + 0)>(bytes + i * register_bytes);
  });
}

template <IsRegisters Vector>
[[gnu::always_inline]] inline void write(void* at, const Vector& vector) {
  repeat<register_count>([&](int i) __attribute__((always_inline)) {
    write(static_cast<std::byte*>(at) + i * register_bytes, vector.parts[i]);
  });
}

[[gnu::always_inline]] inline Lanes broadcast(std::int32_t number) {
  return map_registers<Lanes>(
      [&](int) __attribute__((always_inline)) { return IntRegister{} + number; });
}

[[gnu::always_inline]] inline Reals broadcast(float number) {
  // 0 + -0 would be 0.
  return map_registers<Reals>(
      [&](int) __attribute__((always_inline)) { return number - FloatRegister{}; });
}

// Integers wrap around: they are computed as unsigned numbers.
using UnsignedRegister [[gnu::vector_size(register_bytes)]] = std::uint32_t;
using UnsignedShortRegister [[gnu::vector_size(register_bytes)]] = std::uint16_t;
[[gnu::always_inline]] inline UnsignedRegister wrapping(IntRegister a) {
  return UnsignedRegister(a);
}
[[gnu::always_inline]] inline UnsignedShortRegister wrapping(ShortRegister a) {
  return UnsignedShortRegister(a);
}
[[gnu::always_inline]] inline FloatRegister wrapping(FloatRegister a) { return a; }

#define ANYBIT_REGISTERS_OPERATOR(symbol, operand)                                        \
  template <class Register>                                                               \
  [[gnu::always_inline]] inline Registers<Register> operator symbol(                      \
      const Registers<Register>& a, const Registers<Register>& b) {                       \
    return map_registers<Registers<Register>>([&](int i) __attribute__((always_inline)) { \
      return Register(operand(a.parts[i]) symbol operand(b.parts[i]));                    \
    });                                                                                   \
  }
ANYBIT_REGISTERS_OPERATOR(+, wrapping)
ANYBIT_REGISTERS_OPERATOR(-, wrapping)
ANYBIT_REGISTERS_OPERATOR(*, wrapping)
ANYBIT_REGISTERS_OPERATOR(/, )
ANYBIT_REGISTERS_OPERATOR(&, )
ANYBIT_REGISTERS_OPERATOR(|, )
ANYBIT_REGISTERS_OPERATOR(^, )
ANYBIT_REGISTERS_OPERATOR(>>, )
#undef ANYBIT_REGISTERS_OPERATOR

// Comparisons return all ones or 0 per lane.
#define ANYBIT_REGISTERS_COMPARISON(symbol)                                           \
  template <class Register>                                                           \
  [[gnu::always_inline]] inline Lanes operator symbol(const Registers<Register>& a,   \
                                                      const Registers<Register>& b) { \
    return map_registers<Lanes>([&](int i) __attribute__((always_inline)) {           \
      return reinterpret_cast<IntRegister>(a.parts[i] symbol b.parts[i]);             \
    });                                                                               \
  }
ANYBIT_REGISTERS_COMPARISON(<)
ANYBIT_REGISTERS_COMPARISON(>)
ANYBIT_REGISTERS_COMPARISON(>=)
ANYBIT_REGISTERS_COMPARISON(!=)
ANYBIT_REGISTERS_COMPARISON(==)
#undef ANYBIT_REGISTERS_COMPARISON

[[gnu::always_inline]] inline Reals negated(const Reals& y) {
  return map_registers<Reals>([&](int i) __attribute__((always_inline)) { return -y.parts[i]; });
}

// Per lane: a where the mask is set, else b.
template <class Register>
[[gnu::always_inline]] inline Registers<Register> selected(const Lanes& mask,
                                                           const Registers<Register>& a,
                                                           const Registers<Register>& b) {
  return map_registers<Registers<Register>>([&](int i) __attribute__((always_inline)) {
    return mask.parts[i] ? a.parts[i] : b.parts[i];
  });
}

// 0 where the mask is set, else y.
[[gnu::always_inline]] inline Reals cleared(const Lanes& mask, const Reals& y) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  // GCC would select with an instruction of three steps.
  return map_registers<Reals>([&](int i) __attribute__((always_inline)) {
    return FloatRegister(_mm256_andnot_ps(_mm256_castsi256_ps(__m256i(mask.parts[i])), y.parts[i]));
  });
#else
  return selected(mask, broadcast(0.0f), y);
#endif
}

// y > bottom ? y : bottom, then y < top ? y : top: NaN becomes the bottom.
[[gnu::always_inline]] inline Reals clamped(const Reals& y, const Reals& bottom, const Reals& top) {
  return map_registers<Reals>([&](int i) __attribute__((always_inline)) {
    const FloatRegister x = y.parts[i], low = bottom.parts[i], high = top.parts[i];
#if defined(__AVX512F__)
    return FloatRegister(_mm512_min_ps(_mm512_max_ps(x, low), high));
#elif defined(__AVX2__)
    return FloatRegister(_mm256_min_ps(_mm256_max_ps(x, low), high));
#elif defined(__SSE4_1__)
    return FloatRegister(_mm_min_ps(_mm_max_ps(x, low), high));
#else
    const FloatRegister above = x > low ? x : low;
    return above < high ? above : high;
#endif
  });
}

[[gnu::always_inline]] inline Reals to_reals(const Lanes& lanes) {
  return map_registers<Reals>([&](int i) __attribute__((always_inline)) {
    return __builtin_convertvector(lanes.parts[i], FloatRegister);
  });
}

// The bits of numbers.
[[gnu::always_inline]] inline Lanes bits_of(const Reals& y) {
  return map_registers<Lanes>([&](int i) __attribute__((always_inline)) {
    return reinterpret_cast<IntRegister>(y.parts[i]);
  });
}

// Copies the first of less than 16 numbers. How many varies: memcpy would be a call.
template <class T>
[[gnu::always_inline]] inline void copy_few(void* to, const void* from, int count) {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const auto copy = [&]<int some>() __attribute__((always_inline)) {
    if ((count & some) == 0) return;
    std::memcpy(target, source, some * sizeof(T));
    target += some * sizeof(T), source += some * sizeof(T);
  };
  copy.template operator()<8>();
  copy.template operator()<4>();
  copy.template operator()<2>();
  copy.template operator()<1>();
}

// Stores the first `count` lanes.
[[gnu::always_inline]] inline void write_some(float* at, const Reals& numbers, int count) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(at, static_cast<__mmask16>((1u << count) - 1), numbers.parts[0]);
#else
  if (count == lane_count) return write(at, numbers);
  float lanes[lane_count];
  write(lanes, numbers);
  copy_few<float>(at, lanes, count);
#endif
}

// Transposes 4 x 4 numbers: to[j][i] = from[i][j]. Strides of lines are in elements.
[[gnu::always_inline]] inline void transpose_four(const float* from, std::ptrdiff_t from_line,
                                                  float* to, std::ptrdiff_t to_line) {
#if defined(__SSE4_1__)
  __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + from_line),
         c = _mm_loadu_ps(from + 2 * from_line), d = _mm_loadu_ps(from + 3 * from_line);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(to, a), _mm_storeu_ps(to + to_line, b);
  _mm_storeu_ps(to + 2 * to_line, c), _mm_storeu_ps(to + 3 * to_line, d);
#else
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < 4; ++i) to[j * to_line + i] = from[i * from_line + j];
#endif
}

// 32 bytes, widened to 16 bits.
[[gnu::always_inline]] inline Shorts widened_bytes(const std::byte* at) {
  return map_registers<Shorts>([&](int i) __attribute__((always_inline)) {
    const std::byte* const from = at + i * (register_bytes / 2);
#if defined(__AVX512BW__)
    return ShortRegister(_mm512_cvtepu8_epi16(read<__m256i>(from)));
#elif defined(__AVX2__)
    return ShortRegister(_mm256_cvtepu8_epi16(read<__m128i>(from)));
#elif defined(__SSE4_1__)
    return ShortRegister(
        _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
    using Bytes [[gnu::vector_size(register_bytes / 2)]] = std::uint8_t;
    return __builtin_convertvector(read<Bytes>(from), ShortRegister);
#endif
  });
}

// Widens half of the numbers of a register to 32 bits: the lower or the upper half.
template <bool upper>
[[gnu::always_inline]] inline IntRegister widened_half(const ShortRegister& shorts) {
#if defined(__AVX512BW__)
  return IntRegister(_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(__m512i(shorts), upper)));
#elif defined(__AVX2__)
  return IntRegister(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(__m256i(shorts), upper)));
#elif defined(__SSE4_1__)
  const auto all = __m128i(shorts);
  return IntRegister(_mm_cvtepi16_epi32(upper ? _mm_unpackhi_epi64(all, all) : all));
#else
  using Half [[gnu::vector_size(register_bytes / 2)]] = std::int16_t;
  Half half;
  std::memcpy(&half, reinterpret_cast<const std::byte*>(&shorts) + upper * sizeof half,
              sizeof half);
  return __builtin_convertvector(half, IntRegister);
#endif
}

// Calls use(r, register) for the registers of 32 numbers of 32 bits, r = 0, 1, ...
template <class Use>
[[gnu::always_inline]] inline void for_each_widened(const Shorts& shorts, Use&& use) {
  repeat<register_count>([&](int i) __attribute__((always_inline)) {
    use(2 * i, widened_half<false>(shorts.parts[i]));
    use(2 * i + 1, widened_half<true>(shorts.parts[i]));
  });
}

// sums[i] += numbers[i], i < 32.
[[gnu::always_inline]] inline void add_widened(Lanes (&sums)[2], const Shorts& shorts) {
  for_each_widened(shorts, [&](int r, const IntRegister& more) __attribute__((always_inline)) {
    sums[r / register_count].parts[r % register_count] += more;
  });
}

// Widens 32 numbers to 32 bits.
[[gnu::always_inline]] inline void write_widened(std::int32_t* at, const Shorts& shorts) {
  for_each_widened(shorts, [&](int r, const IntRegister& wide) __attribute__((always_inline)) {
    write(at + r * (register_bytes / 4), wide);
  });
}

// One bit per lane: a >= b.
[[gnu::always_inline]] inline std::uint32_t reached(const Lanes& a, const Lanes& b) {
#if defined(__AVX512F__)
  return _mm512_cmpge_epi32_mask(__m512i(a.parts[0]), __m512i(b.parts[0]));
#elif defined(__SSE4_1__)
  std::uint32_t less = 0;
  repeat<register_count>([&](int i) __attribute__((always_inline)) {
#if defined(__AVX2__)
    const __m256i lanes = _mm256_cmpgt_epi32(__m256i(b.parts[i]), __m256i(a.parts[i]));
    less |= static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes))) << 8 * i;
#else
    const __m128i lanes = _mm_cmpgt_epi32(__m128i(b.parts[i]), __m128i(a.parts[i]));
    less |= static_cast<std::uint32_t>(_mm_movemask_ps(_mm_castsi128_ps(lanes))) << 4 * i;
#endif
  });
  return less ^ 0xffff;
#else
  std::int32_t left[lane_count], right[lane_count];
  write(left, a), write(right, b);
  std::uint32_t bits = 0;
  for (int i = 0; i < lane_count; ++i) bits |= static_cast<std::uint32_t>(left[i] >= right[i]) << i;
  return bits;
#endif
}

// Whether any lane is negative: of a comparison, whether it holds anywhere.
[[gnu::always_inline]] inline bool has_negative(const Lanes& lanes) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const IntRegister both = lanes.parts[0] | lanes.parts[1];
  return _mm256_movemask_ps(_mm256_castsi256_ps(__m256i(both))) != 0;
#else
  return reached(broadcast(-1), lanes) != 0;
#endif
}

// count + 1 where a >= b
[[gnu::always_inline]] inline Lanes counted(const Lanes& count, const Lanes& a, const Lanes& b) {
#if defined(__AVX512F__)
  const auto old = __m512i(count.parts[0]);
  return {IntRegister(_mm512_mask_add_epi32(old, static_cast<__mmask16>(reached(a, b)), old,
                                            _mm512_set1_epi32(1)))};
#else
  return count - (a >= b);
#endif
}

template <class Number>
[[maybe_unused, gnu::always_inline]] inline Lanes gathered_one_by_one(const Number* from,
                                                                      const Lanes& places) {
  std::int32_t indices[lane_count], numbers[lane_count];
  write(indices, places);
  for (int i = 0; i < lane_count; ++i) numbers[i] = from[indices[i]];
  return read<Lanes>(numbers);
}

// Gathers numbers at indices, which are not negative.
[[gnu::always_inline]] inline Lanes gathered(const std::int32_t* from, const Lanes& places) {
#if defined(__AVX512F__)
  return {IntRegister(_mm512_i32gather_epi32(__m512i(places.parts[0]), from, 4))};
#elif defined(__AVX2__)
  return map_registers<Lanes>([&](int i) __attribute__((always_inline)) {
    return IntRegister(_mm256_i32gather_epi32(from, __m256i(places.parts[i]), 4));
  });
#else
  return gathered_one_by_one(from, places);
#endif
}

// The same of bytes; three bytes after the last one are read, too.
[[gnu::always_inline]] inline Lanes gathered(const std::uint8_t* from, const Lanes& places) {
#if defined(__AVX512F__)
  const __m512i words = _mm512_i32gather_epi32(__m512i(places.parts[0]), from, 1);
  return {IntRegister(_mm512_and_si512(words, _mm512_set1_epi32(255)))};
#elif defined(__AVX2__)
  return map_registers<Lanes>([&](int i) __attribute__((always_inline)) {
    const __m256i words =
        _mm256_i32gather_epi32(reinterpret_cast<const int*>(from), __m256i(places.parts[i]), 1);
    return IntRegister(_mm256_and_si256(words, _mm256_set1_epi32(255)));
  });
#else
  return gathered_one_by_one(from, places);
#endif
}

[[gnu::always_inline]] inline Lanes smaller(const Lanes& a, const Lanes& b) {
#if defined(__AVX512F__)
  return {IntRegister(_mm512_min_epi32(__m512i(a.parts[0]), __m512i(b.parts[0])))};
#elif defined(__AVX2__)
  return map_registers<Lanes>([&](int i) __attribute__((always_inline)) {
    return IntRegister(_mm256_min_epi32(__m256i(a.parts[i]), __m256i(b.parts[i])));
  });
#else
  return selected(a < b, a, b);
#endif
}

[[gnu::always_inline]] inline Lanes larger(const Lanes& a, const Lanes& b) {
#if defined(__AVX512F__)
  return {IntRegister(_mm512_max_epi32(__m512i(a.parts[0]), __m512i(b.parts[0])))};
#elif defined(__AVX2__)
  return map_registers<Lanes>([&](int i) __attribute__((always_inline)) {
    return IntRegister(_mm256_max_epi32(__m256i(a.parts[i]), __m256i(b.parts[i])));
  });
#else
  return selected(a > b, a, b);
#endif
}

// Packs lanes of 0..255 to bytes. With AVX2 it saturates others.
[[gnu::always_inline]] inline ByteLanes narrowed(const Lanes& lanes) {
#if defined(__AVX512F__)
  return ByteLanes(
      _mm512_cvtusepi32_epi8(_mm512_max_epi32(__m512i(lanes.parts[0]), _mm512_setzero_si512())));
#elif defined(__AVX2__)
  // The halves of registers are packed apart: channels 0-3 and 8-11, then the others.
  const __m256i shorts = _mm256_packs_epi32(__m256i(lanes.parts[0]), __m256i(lanes.parts[1]));
  const __m128i bytes =
      _mm_packus_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1));
  return ByteLanes(_mm_shuffle_epi32(bytes, 0xd8));
#elif defined(__SSE4_1__)
  const auto part = [&](int i) __attribute__((always_inline)) { return __m128i(lanes.parts[i]); };
  return ByteLanes(
      _mm_packus_epi16(_mm_packs_epi32(part(0), part(1)), _mm_packs_epi32(part(2), part(3))));
#else
  using Bytes [[gnu::vector_size(register_bytes / 4)]] = std::uint8_t;
  ByteLanes bytes;
  repeat<register_count>([&](int i) __attribute__((always_inline)) {
    const Bytes part = __builtin_convertvector(lanes.parts[i], Bytes);
    std::memcpy(reinterpret_cast<std::byte*>(&bytes) + i * sizeof part, &part, sizeof part);
  });
  return bytes;
#endif
}

// Packs four vectors in the same way, one after another.
[[gnu::always_inline]] inline void write_narrowed(void* at, const Lanes (&panels)[4]) {
#if defined(__AVX512BW__)
  const auto panel = [&](int i)
                         __attribute__((always_inline)) { return __m512i(panels[i].parts[0]); };
  const __m512i quarters = _mm512_packus_epi16(_mm512_packs_epi32(panel(0), panel(1)),
                                               _mm512_packs_epi32(panel(2), panel(3)));
  // The pack instructions interleave 128-bit quarters: undo this.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  write(at, _mm512_permutexvar_epi32(order, quarters));
#elif defined(__AVX2__)
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  repeat<2>([&](int half) __attribute__((always_inline)) {
    const auto packed = [&](int i) __attribute__((always_inline)) {
      const Lanes& panel = panels[2 * half + i];
      return _mm256_packs_epi32(__m256i(panel.parts[0]), __m256i(panel.parts[1]));
    };
    const __m256i bytes = _mm256_packus_epi16(packed(0), packed(1));
    write(static_cast<std::byte*>(at) + 32 * half, _mm256_permutevar8x32_epi32(bytes, order));
  });
#else
  repeat<4>([&](int i) __attribute__((always_inline)) {
    write(static_cast<std::byte*>(at) + 16 * i, narrowed(panels[i]));
  });
#endif
}

}  // namespace
