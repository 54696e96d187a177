// SPDX-License-Identifier: Apache-2.0
// Portable traits: vector extensions of GCC and Clang, available for all targets.
#pragma once
#include <cstdint>
#include <cstring>

namespace {

struct PortableBase {
  using Vector [[gnu::vector_size(16)]] = std::uint32_t;  // 4 lanes of 32 bits
  using Half [[gnu::vector_size(16)]] = std::int16_t;
  using Word [[gnu::vector_size(16)]] = std::int32_t;
  using Byte [[gnu::vector_size(16)]] = std::int8_t;
  static constexpr int lanes = 4, registers = 16;
  static Vector load(const void* at) { return *static_cast<const Vector*>(at); }
  static void store(void* at, Vector v) { std::memcpy(at, &v, sizeof v); }
  static Vector broadcast(const void* word) {
    std::uint32_t one;
    std::memcpy(&one, word, sizeof one);
    return Vector{} + one;
  }
  static Vector add(Vector a, Vector b) { return a + b; }
  static Vector sub(Vector a, Vector b) { return a - b; }
  static Vector bit_and(Vector a, Vector b) { return a & b; }
  static Vector bit_xor(Vector a, Vector b) { return a ^ b; }
  static Vector and_xor(Vector p, Vector a, Vector b) { return p & (a ^ b); }
  static Vector without_xor(Vector a, Vector b, Vector c) { return ~a & (b ^ c); }
  static Vector even_u8(Vector a) { return a & 0x00ff00ff; }
  static Vector odd_u8(Vector a) { return (a >> 8) & 0x00ff00ff; }
  static Vector even_s8(Vector a) { return Vector((Half(a) << 8) >> 8); }
  static Vector odd_s8(Vector a) { return Vector(Half(a) >> 8); }
};

// Products u8 x s8 fit 16 bits; sums have 32 bits.
struct Portable : PortableBase {
  static constexpr bool narrow = false;
  static Vector dot16(Vector sum, Vector a, Vector b) {
    const Vector product = Vector(Half(a) * Half(b));
    return sum + Vector(Word(product << 16) >> 16) + Vector(Word(product) >> 16);
  }
  // Pairs of numbers of 16 bits above -2^15: their sums fit 32 bits.
  static Vector dot_words(Vector sum, Vector a, Vector b) {
    const Word even = (Word(a << 16) >> 16) * (Word(b << 16) >> 16);
    const Word odd = (Word(a) >> 16) * (Word(b) >> 16);
    return sum + Vector(even) + Vector(odd);
  }
};

struct PortableBits : PortableBase {  // sums of 8 bits: at most 31 steps
  static constexpr bool narrow = true;
  static Vector count(Vector sum, Vector x) {
    x -= (x >> 1) & 0x55555555;
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333);
    return sum + ((x + (x >> 4)) & 0x0f0f0f0f);
  }
  static Vector widened(Vector sum) {
    sum = (sum & 0x00ff00ff) + ((sum >> 8) & 0x00ff00ff);
    return (sum & 0xffff) + (sum >> 16);
  }
};

}  // namespace
