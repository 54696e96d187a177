// SPDX-License-Identifier: Apache-2.0
// AArch64. The dot product has signed activations only: indices up to 127.
#pragma once
#include <arm_neon.h>
#include <cstdint>
#include <cstring>

namespace {

struct NeonBase {
  using Vector = uint32x4_t;
  static constexpr int lanes = 4, registers = 32;
  static Vector load(const void* at) { return vld1q_u32(static_cast<const std::uint32_t*>(at)); }
  static void store(void* at, Vector v) { vst1q_u32(static_cast<std::uint32_t*>(at), v); }
  static Vector broadcast(const void* at) {
    std::uint32_t word;
    std::memcpy(&word, at, sizeof word);
    return vdupq_n_u32(word);
  }
  static Vector add(Vector a, Vector b) { return vaddq_u32(a, b); }
  static Vector sub(Vector a, Vector b) { return vsubq_u32(a, b); }
  static Vector bit_and(Vector a, Vector b) { return vandq_u32(a, b); }
  static Vector bit_xor(Vector a, Vector b) { return veorq_u32(a, b); }
  static Vector and_xor(Vector p, Vector a, Vector b) { return vandq_u32(p, veorq_u32(a, b)); }
  static Vector without_xor(Vector a, Vector b, Vector c) { return vbicq_u32(veorq_u32(b, c), a); }
  using Table = int8x16_t;
  static Table table(const std::int8_t* entries) { return vld1q_s8(entries); }
  template <int shift, int bits>
  static Vector look_up(Table table, Vector packed) {
    uint8x16_t codes = vreinterpretq_u8_u32(packed);
    if constexpr (shift > 0) codes = vshrq_n_u8(codes, shift);
    if constexpr (shift + bits < 8) codes = vandq_u8(codes, vdupq_n_u8((1 << bits) - 1));
    return vreinterpretq_u32_s8(vqtbl1q_s8(table, codes));
  }
};

struct NeonBits : NeonBase {  // sums of 8 bits: at most 31 steps
  static constexpr bool narrow = true;
  static Vector count(Vector sum, Vector bits) {
    return vreinterpretq_u32_u8(
        vaddq_u8(vreinterpretq_u8_u32(sum), vcntq_u8(vreinterpretq_u8_u32(bits))));
  }
  static Vector widened(Vector sum) { return vpaddlq_u16(vpaddlq_u8(vreinterpretq_u8_u32(sum))); }
};

struct Neon : NeonBase {
  static constexpr bool narrow = false;
  static Vector dot(Vector sum, Vector a, Vector b) {
    const int8x16_t x = vreinterpretq_s8_u32(a), y = vreinterpretq_s8_u32(b);
#if defined(__ARM_FEATURE_DOTPROD)
    return vreinterpretq_u32_s32(vdotq_s32(vreinterpretq_s32_u32(sum), x, y));
#else
    const int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(y)), high = vmull_high_s8(x, y);
    return vreinterpretq_u32_s32(vpadalq_s16(vreinterpretq_s32_u32(sum), vpaddq_s16(low, high)));
#endif
  }
};

}  // namespace
