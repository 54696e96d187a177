// SPDX-License-Identifier: Apache-2.0
// AVX2.
#pragma once
#include <immintrin.h>
#include <cstdint>
#include <cstring>

namespace {

struct Avx2Base {
  using Vector = __m256i;  // 8 lanes of 32 bits
  static constexpr int lanes = 8, registers = 16;
  static Vector load(const void* at) { return _mm256_load_si256(static_cast<const Vector*>(at)); }
  static Vector load_any(const void* at) {
    return _mm256_loadu_si256(static_cast<const Vector*>(at));
  }
  static void store(void* at, Vector v) { _mm256_storeu_si256(static_cast<Vector*>(at), v); }
  static Vector broadcast(const void* at) {
    std::int32_t word;
    std::memcpy(&word, at, sizeof word);
    return _mm256_set1_epi32(word);
  }
  static Vector add(Vector a, Vector b) { return _mm256_add_epi32(a, b); }
  static Vector sub(Vector a, Vector b) { return _mm256_sub_epi32(a, b); }
  static Vector bit_and(Vector a, Vector b) { return _mm256_and_si256(a, b); }
  static Vector bit_xor(Vector a, Vector b) { return _mm256_xor_si256(a, b); }
  static Vector and_xor(Vector p, Vector a, Vector b) { return bit_and(p, bit_xor(a, b)); }
  static Vector without_xor(Vector a, Vector b, Vector c) {
    return _mm256_andnot_si256(a, bit_xor(b, c));
  }
  using Table = __m256i;
  static Table table(const std::int8_t* entries) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
  }
  template <int shift, int bits>
  static Vector look_up(Table table, Vector packed) {
    const Vector codes = shift == 0 ? packed : _mm256_srli_epi16(packed, shift);
    return _mm256_shuffle_epi8(table, bit_and(codes, _mm256_set1_epi8((1 << bits) - 1)));
  }
  static Vector even_u8(Vector a) { return bit_and(a, _mm256_set1_epi16(255)); }
  static Vector odd_u8(Vector a) { return _mm256_srli_epi16(a, 8); }
  static Vector even_s8(Vector a) { return odd_s8(_mm256_slli_epi16(a, 8)); }
  static Vector odd_s8(Vector a) { return _mm256_srai_epi16(a, 8); }
  static Vector dot16(Vector sum, Vector a, Vector b) { return add(sum, _mm256_madd_epi16(a, b)); }
  // Pairs of numbers of 16 bits above -2^15: their sums fit 32 bits.
  static Vector dot_words(Vector sum, Vector a, Vector b) {
    Vector next = dot16(sum, a, b);
    // GCC 12 would spill the sums of a tile of 6 x 2 registers.
    asm volatile("" : "+x"(next));
    return next;
  }
  // Ones per byte, added to sums of 8 bits: at most 31 steps of 8.
  static Vector count(Vector sum, Vector bits) {
    const Vector ones = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                         0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    const Vector low = _mm256_set1_epi8(15);
    const Vector a = _mm256_shuffle_epi8(ones, bit_and(bits, low));
    const Vector b = _mm256_shuffle_epi8(ones, bit_and(_mm256_srli_epi16(bits, 4), low));
    return _mm256_add_epi8(_mm256_add_epi8(sum, a), b);
  }
};

// Bits: sums of 8 bits.
struct Avx2Bits : Avx2Base {
  static constexpr bool narrow = true;
  static Vector widened(Vector sum) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(sum, _mm256_set1_epi8(1)), _mm256_set1_epi16(1));
  }
};

// u8 x s8 as sums of 16-bit pairs, which saturate: 2 max|a| max|w| <= 32767.
struct Avx2 : Avx2Base {
  static constexpr bool narrow = false;
  static constexpr int part_steps = 128;
  static Vector dot(Vector sum, Vector u8, Vector s8) {
    const Vector pairs = _mm256_maddubs_epi16(u8, s8);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};

// The same in sums of 16 bits, which hold a number of steps that depends on the operands.
struct Avx2Short : Avx2Base {
  static constexpr bool narrow = true, wraps_at_16_bits = true;
  static constexpr int part_steps = 128;
  // The low 16 bits of the sums of a panel.
  static Vector shorts(const Vector (&sums)[2]) {
    return _mm256_permute4x64_epi64(_mm256_hadd_epi16(sums[0], sums[1]), 0xd8);
  }
  static void store_shorts(void* at, const Vector (&sums)[2]) { store(at, shorts(sums)); }
  static void add_shorts(void* at, const Vector (&sums)[2]) {
    store(at, _mm256_add_epi16(load_any(at), shorts(sums)));
  }
  static Vector dot(Vector sum, Vector u8, Vector s8) {
    Vector next = _mm256_add_epi16(sum, _mm256_maddubs_epi16(u8, s8));
    // GCC 12 would spill the sums of a tile of 6 x 2 registers.
    asm volatile("" : "+x"(next));
    return next;
  }
  static Vector widened(Vector sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
};

#if defined(__AVXVNNI__)
// AVX-VNNI without AVX-512.
struct Avx2Vnni : Avx2Base {
  static constexpr bool narrow = false;
  static Vector dot(Vector sum, Vector u8, Vector s8) {
    return _mm256_dpbusd_avx_epi32(sum, u8, s8);
  }
  static Vector dot_words(Vector sum, Vector a, Vector b) {
    return _mm256_dpwssd_avx_epi32(sum, a, b);
  }
};
#endif

}  // namespace
