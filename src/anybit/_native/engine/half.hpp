// SPDX-License-Identifier: Apache-2.0
// Bitwise conversion of binary16 and bfloat16: exact to float, to nearest even from float.
#pragma once

#include <bit>
#include <cstdint>

namespace anybit {

[[gnu::always_inline]] inline float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

[[gnu::always_inline]] inline std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>((nan ? bits | 0x400000u : rounded) >> 16);
}

[[gnu::always_inline]] inline float from_float16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  // The bits of a normal number only need another exponent bias; a subnormal is an integer count
  // of 2^-24.
  const std::uint32_t special = magnitude >= 0x7c00u ? 0x38000000u : 0u;
  const auto normal = std::bit_cast<float>((magnitude << 13) + 0x38000000u + special);
  const float subnormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f;
  const float value = magnitude < 0x400u ? subnormal : normal;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

[[gnu::always_inline]] inline std::uint16_t to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Adding 0.5 puts the last place of a subnormal result at the last place of the sum, so that
  // the addition rounds it.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
  const std::uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  const std::uint32_t normal = (rounded - 0x38000000u) >> 13;
  std::uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;  // rounds to infinity
  result = magnitude > 0x7f800000u ? 0x7e00u : result;
  return static_cast<std::uint16_t>(result | sign);
}

}  // namespace anybit
