// SPDX-License-Identifier: Apache-2.0
// One step along the reduction axis K, per scheme.
//
// A scheme defines the number of 32-bit words of A (one pixel) and of packed vectors of B (16, 8 or
// 4 channels) per step, the number of phases that share the packed vectors, the number of sums per
// output, and the operation of a phase. A step covers 32 / (bits of A's codes) values of K per word
// and phase. `Scheme` in product_kernels.hpp defines the sums.
#pragma once
#include <cstdint>

#include "_native/lowbit/lanes.hpp"
#include "_native/lowbit/unroll.hpp"

namespace {

// Default of most schemes: operands are used as loaded.
template <class Isa, int words_, int vectors_, int sums_>
struct Plain {
  using Vector = typename Isa::Vector;
  static constexpr int words = words_, vectors = vectors_, phases = 1, sums = sums_;
  static constexpr bool has_extras = false;  // whether extra steps follow those of a panel
  static constexpr int operands_a = words, operands_b = vectors;
  [[gnu::always_inline]] explicit Plain(const std::int8_t*) {}
  [[gnu::always_inline]] static void expand(const Vector (&word)[words], Vector (&row)[words]) {
    repeat<words>([&](int w) __attribute__((always_inline)) { row[w] = word[w]; });
  }
  template <int phase>
  [[gnu::always_inline]] void unpack(const Vector (&packed)[vectors], Vector (&b)[vectors]) const {
    repeat<vectors>([&](int v) __attribute__((always_inline)) { b[v] = packed[v]; });
  }
  [[gnu::always_inline]] static Vector result(const Vector (&sum)[sums]) {
    static_assert(sums == 1);
    return sum[0];
  }
};

template <class Isa>
struct Dot8 : Plain<Isa, 1, 1, 1> {  // 4 k per step
  using Vector = typename Isa::Vector;
  using Plain<Isa, 1, 1, 1>::Plain;
  [[gnu::always_inline]] static void step(Vector (&sum)[1], const Vector (&a)[1],
                                          const Vector (&b)[1]) {
    sum[0] = Isa::dot(sum[0], a[0], b[0]);
  }
};

// Any u8 x s8 in steps whose pairs of products fit 16 bits, and extra steps.
template <class Isa>
struct Split8 : Dot8<Isa> {
  using Dot8<Isa>::Dot8;
  static constexpr bool has_extras = true;
};

// Any u8 x s8 by 16-bit products: even and odd bytes separately.
template <class Isa>
struct Wide8 : Plain<Isa, 1, 1, 1> {
  using Vector = typename Isa::Vector;
  using Plain<Isa, 1, 1, 1>::Plain;
  static constexpr int operands_a = 2, operands_b = 2;
  [[gnu::always_inline]] static void expand(const Vector (&word)[1], Vector (&row)[2]) {
    row[0] = Isa::even_u8(word[0]);
    row[1] = Isa::odd_u8(word[0]);
  }
  template <int phase>
  [[gnu::always_inline]] void unpack(const Vector (&packed)[1], Vector (&b)[2]) const {
    b[0] = Isa::even_s8(packed[0]);
    b[1] = Isa::odd_s8(packed[0]);
  }
  [[gnu::always_inline]] static void step(Vector (&sum)[1], const Vector (&a)[2],
                                          const Vector (&b)[2]) {
    sum[0] = Isa::dot16(Isa::dot16(sum[0], a[0], b[0]), a[1], b[1]);
  }
};

// The same with weights of 16 bits: even ones, then odd ones.
template <class Isa>
struct Widened8 : Plain<Isa, 1, 2, 1> {
  using Vector = typename Isa::Vector;
  using Plain<Isa, 1, 2, 1>::Plain;
  static constexpr int operands_a = 2;
  [[gnu::always_inline]] static void expand(const Vector (&word)[1], Vector (&row)[2]) {
    Wide8<Isa>::expand(word, row);
  }
  [[gnu::always_inline]] static void step(Vector (&sum)[1], const Vector (&a)[2],
                                          const Vector (&b)[2]) {
    Wide8<Isa>::step(sum, a, b);
  }
};

// Pairs of numbers of 16 bits, both operands.
template <class Isa>
struct Words : Plain<Isa, 1, 1, 1> {
  using Vector = typename Isa::Vector;
  using Plain<Isa, 1, 1, 1>::Plain;
  [[gnu::always_inline]] static void step(Vector (&sum)[1], const Vector (&a)[1],
                                          const Vector (&b)[1]) {
    sum[0] = Isa::dot_words(sum[0], a[0], b[0]);
  }
};

// Weights of 4 or 2 bits: a byte holds the code of phase p at bit p * bits. A table maps codes to
// any 16 (4) values.
template <class Isa, int bits>
struct DotPacked : Dot8<Isa> {
  using Vector = typename Isa::Vector;
  static constexpr int phases = 8 / bits;
  typename Isa::Table values;
  [[gnu::always_inline]] explicit DotPacked(const std::int8_t* entries)
      : Dot8<Isa>(entries), values(Isa::table(entries)) {}
  template <int phase>
  [[gnu::always_inline]] void unpack(const Vector (&packed)[1], Vector (&b)[1]) const {
    b[0] = Isa::template look_up<phase * bits, bits>(values, packed[0]);
  }
};
template <class Isa>
using Dot4 = DotPacked<Isa, 4>;
template <class Isa>
using Dot2 = DotPacked<Isa, 2>;
template <class Isa>
using Dot1 = DotPacked<Isa, 1>;

// Weights of 3 bits: two vectors have the lower two bits of codes, a third one the upper bits, at
// bit p of phase p.
template <class Isa>
struct Dot3 : Plain<Isa, 1, 3, 1> {
  using Vector = typename Isa::Vector;
  static constexpr int phases = 8, operands_b = 1;
  typename Isa::Table values;
  [[gnu::always_inline]] explicit Dot3(const std::int8_t* entries)
      : Plain<Isa, 1, 3, 1>(entries), values(Isa::table(entries)) {}
  template <int phase>
  [[gnu::always_inline]] void unpack(const Vector (&packed)[3], Vector (&b)[1]) const {
    const auto lows = UnsignedShortRegister(packed[phase / 4]) >> phase % 4 * 2;
    const auto high = UnsignedShortRegister(packed[2]);
    const auto highs = phase < 2 ? high << (2 - phase) % 8 : high >> (phase + 6) % 8;
    const UnsignedShortRegister mask = UnsignedShortRegister{} + std::uint16_t{0x0303};
    b[0] = Isa::template look_up<0, 3>(values, Vector((lows & mask) | (highs & ~mask)));
  }
  [[gnu::always_inline]] static void step(Vector (&sum)[1], const Vector (&a)[1],
                                          const Vector (&b)[1]) {
    Dot8<Isa>::step(sum, a, b);
  }
};

// Ones of the low plane plus twice those of the high plane.
template <class Isa>
[[gnu::always_inline]] inline typename Isa::Vector weighted(typename Isa::Vector low,
                                                            typename Isa::Vector high) {
  return Isa::add(low, Isa::add(high, high));
}

// Mismatches of the planes of A with one plane of B.
template <class Isa, int planes>
struct Xor : Plain<Isa, planes, 1, planes> {
  using Vector = typename Isa::Vector;
  using Plain<Isa, planes, 1, planes>::Plain;
  [[gnu::always_inline]] static void step(Vector (&sum)[planes], const Vector (&a)[planes],
                                          const Vector (&b)[1]) {
    repeat<planes>([&](int p) __attribute__((always_inline)) {
      sum[p] = Isa::count(sum[p], Isa::bit_xor(a[p], b[0]));
    });
  }
  [[gnu::always_inline]] static Vector result(const Vector (&sum)[planes]) {
    if constexpr (planes == 1) return sum[0];
    else return weighted<Isa>(sum[0], sum[1]);
  }
};
template <class Isa>
using Xor11 = Xor<Isa, 1>;
template <class Isa>
using Xor12 = Xor<Isa, 2>;

// Planes of B: "not zero" and "positive".
template <class Isa, int planes>
struct Ternary : Plain<Isa, planes, 2, planes> {
  using Vector = typename Isa::Vector;
  using Plain<Isa, planes, 2, planes>::Plain;
  [[gnu::always_inline]] static void step(Vector (&sum)[planes], const Vector (&a)[planes],
                                          const Vector (&b)[2]) {
    repeat<planes>([&](int p) __attribute__((always_inline)) {
      sum[p] = Isa::count(sum[p], Isa::and_xor(b[0], a[p], b[1]));
    });
  }
  [[gnu::always_inline]] static Vector result(const Vector (&sum)[planes]) {
    if constexpr (planes == 1) return sum[0];
    else return weighted<Isa>(sum[0], sum[1]);
  }
};
template <class Isa>
using Ternary11 = Ternary<Isa, 1>;
template <class Isa>
using Ternary12 = Ternary<Isa, 2>;

// Indices 0, 1, 2 are the signs -1, 0, 1: the low plane marks zeros, the high plane positive signs.
template <class Isa>
struct Signs12 : Plain<Isa, 2, 1, 1> {
  using Vector = typename Isa::Vector;
  using Plain<Isa, 2, 1, 1>::Plain;
  [[gnu::always_inline]] static void step(Vector (&sum)[1], const Vector (&a)[2],
                                          const Vector (&b)[1]) {
    sum[0] = Isa::count(sum[0], Isa::without_xor(a[0], a[1], b[0]));
  }
  [[gnu::always_inline]] static Vector result(const Vector (&sum)[1]) {
    return Isa::add(sum[0], sum[0]);
  }
};

// The second plane of B has weight -2.
template <class Isa, int planes>
struct And : Plain<Isa, planes, 2, 2 * planes> {
  using Vector = typename Isa::Vector;
  using Plain<Isa, planes, 2, 2 * planes>::Plain;
  [[gnu::always_inline]] static void step(Vector (&sum)[2 * planes], const Vector (&a)[planes],
                                          const Vector (&b)[2]) {
    repeat<planes>([&](int p) __attribute__((always_inline)) {
      sum[2 * p] = Isa::count(sum[2 * p], Isa::bit_and(a[p], b[0]));
      sum[2 * p + 1] = Isa::count(sum[2 * p + 1], Isa::bit_and(a[p], b[1]));
    });
  }
  [[gnu::always_inline]] static Vector result(const Vector (&sum)[2 * planes]) {
    const auto of_plane = [&](int p) __attribute__((always_inline)) {
      return Isa::sub(sum[2 * p], Isa::add(sum[2 * p + 1], sum[2 * p + 1]));
    };
    if constexpr (planes == 1) return of_plane(0);
    else return weighted<Isa>(of_plane(0), of_plane(1));
  }
};
template <class Isa>
using And21 = And<Isa, 1>;
template <class Isa>
using And22 = And<Isa, 2>;

}  // namespace
