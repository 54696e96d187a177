// SPDX-License-Identifier: Apache-2.0
// AVX-512 with VNNI, VPOPCNTDQ and VBMI, and the same without VPOPCNTDQ (Cascade Lake) or VNNI
// (Skylake).
#pragma once
#include <immintrin.h>
#include <cstdint>
#include <cstring>

namespace {

struct Avx512Base {
  using Vector = __m512i;  // 16 lanes of 32 bits: 16 output channels
  static constexpr int lanes = 16, registers = 32;

  static Vector load(const void* at) { return _mm512_load_si512(at); }
  static void store(void* at, Vector v) { _mm512_storeu_si512(at, v); }
  static Vector broadcast(const void* at) {
    std::int32_t word;
    std::memcpy(&word, at, sizeof word);
    return _mm512_set1_epi32(word);
  }
  static Vector add(Vector a, Vector b) { return _mm512_add_epi32(a, b); }
  static Vector sub(Vector a, Vector b) { return _mm512_sub_epi32(a, b); }
  static Vector bit_and(Vector a, Vector b) { return _mm512_and_si512(a, b); }
  static Vector bit_xor(Vector a, Vector b) { return _mm512_xor_si512(a, b); }
  // p & (a ^ b)
  static Vector and_xor(Vector p, Vector a, Vector b) {
    return _mm512_ternarylogic_epi32(p, a, b, 0x60);
  }
  // b ^ c where a is not set
  static Vector without_xor(Vector a, Vector b, Vector c) {
    return _mm512_ternarylogic_epi32(a, b, c, 0x06);
  }
  // Looks up bytes in a table of 16 by `bits` bits from bit `shift` on. A table for fewer bits
  // repeats its entries.
  using Table = __m512i;
  static Table table(const std::int8_t* entries) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
  }
  template <int shift, int bits>
  static Vector look_up(Table table, Vector packed) {
    const Vector codes = shift == 0 ? packed : _mm512_srli_epi16(packed, shift);
#if defined(__AVX512VBMI__)
    // Uses 6 bits of a byte; the table repeats its 16 entries for all values of the upper two.
    return _mm512_permutexvar_epi8(codes, table);
#else
    return _mm512_shuffle_epi8(table, _mm512_and_si512(codes, _mm512_set1_epi8((1 << bits) - 1)));
#endif
  }
  static Vector even_u8(Vector a) { return bit_and(a, _mm512_set1_epi16(255)); }
  static Vector odd_u8(Vector a) { return _mm512_srli_epi16(a, 8); }
  static Vector even_s8(Vector a) { return odd_s8(_mm512_slli_epi16(a, 8)); }
  static Vector odd_s8(Vector a) { return _mm512_srai_epi16(a, 8); }
  static Vector dot16(Vector sum, Vector a, Vector b) { return add(sum, _mm512_madd_epi16(a, b)); }
  // Pairs of numbers of 16 bits above -2^15: their sums fit 32 bits.
  static Vector dot_words(Vector sum, Vector a, Vector b) { return dot16(sum, a, b); }
};

// u8 x s8 as sums of 16-bit pairs, which saturate: 2 max|a| max|w| <= 32767.
struct Avx512 : Avx512Base {
  static constexpr bool narrow = false;
  static Vector dot(Vector sum, Vector u8, Vector s8) {
    const Vector pairs = _mm512_maddubs_epi16(u8, s8);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
};

// The same in sums of 16 bits, which hold a number of steps that depends on the operands.
struct Avx512Short : Avx512Base {
  static constexpr bool narrow = true;
  static Vector dot(Vector sum, Vector u8, Vector s8) {
    return _mm512_add_epi16(sum, _mm512_maddubs_epi16(u8, s8));
  }
  static Vector widened(Vector sum) { return _mm512_madd_epi16(sum, _mm512_set1_epi16(1)); }
};

#if defined(__AVX512VNNI__)
struct Avx512Vnni : Avx512Base {
  static constexpr bool narrow = false;
  static Vector dot(Vector sum, Vector u8, Vector s8) { return _mm512_dpbusd_epi32(sum, u8, s8); }
  static Vector dot_words(Vector sum, Vector a, Vector b) { return _mm512_dpwssd_epi32(sum, a, b); }
};
#endif

#if defined(__AVX512VPOPCNTDQ__)
struct Avx512Popcnt : Avx512Base {
  static constexpr bool narrow = false;
  static Vector count(Vector sum, Vector bits) {
    return _mm512_add_epi32(sum, _mm512_popcnt_epi32(bits));
  }
};
#endif

// Without VPOPCNTDQ, bits are counted by table lookup, in 8-bit sums.
struct Avx512Bits : Avx512Base {
  static constexpr bool narrow = true;
  static Vector count(Vector sum, Vector bits) {
    const Vector ones =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    const Vector low = _mm512_set1_epi8(15);
    const Vector a = _mm512_shuffle_epi8(ones, bit_and(bits, low));
    const Vector b = _mm512_shuffle_epi8(ones, bit_and(_mm512_srli_epi16(bits, 4), low));
    return _mm512_add_epi8(_mm512_add_epi8(sum, a), b);
  }
  static Vector widened(Vector sum) {
    return _mm512_madd_epi16(_mm512_maddubs_epi16(sum, _mm512_set1_epi8(1)), _mm512_set1_epi16(1));
  }
};

}  // namespace
