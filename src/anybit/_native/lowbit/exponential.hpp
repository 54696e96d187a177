// SPDX-License-Identifier: Apache-2.0
// The exponential function, the sigmoid and the GELU of float32 numbers. Operations and their order
// are those of `anybit/compiler/program/reference.py`.
#pragma once

#include <bit>

#include "lanes.hpp"

namespace {

// The exponential function of numbers from -87 to 0.
[[gnu::always_inline]] inline Reals exp_within(const Reals& x) {
  constexpr float shift = 12582912.0f;
  const Reals shifted = x * broadcast(1.44269504f) + broadcast(shift);
  const Reals exponent = shifted - broadcast(shift);
  const Reals rest = x - exponent * broadcast(0.693359375f) - exponent * broadcast(-2.12194440e-4f);
  Reals y = broadcast(static_cast<float>(1.0 / 720));
  for (const double factor : {1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2})
    y = y * rest + broadcast(static_cast<float>(factor));
  y = y * rest * rest + rest + broadcast(1.0f);
  const Lanes bits = bits_of(shifted) - broadcast(std::bit_cast<std::int32_t>(shift) - 127);
  return map_registers<Reals>([&](int i) __attribute__((always_inline)) {
    const UnsignedRegister power = UnsignedRegister(bits.parts[i]) << 23;
    return y.parts[i] * reinterpret_cast<FloatRegister>(power);
  });
}

// The larger one of x and -87; NaN stays.
[[gnu::always_inline]] inline Reals bounded_below(const Reals& x) {
  return map_registers<Reals>([&](int i) __attribute__((always_inline)) {
    const FloatRegister lowest = FloatRegister{} - 87.0f;
#if defined(__AVX512F__)
    return FloatRegister(_mm512_max_ps(lowest, x.parts[i]));
#elif defined(__AVX2__)
    return FloatRegister(_mm256_max_ps(lowest, x.parts[i]));
#elif defined(__SSE4_1__)
    return FloatRegister(_mm_max_ps(lowest, x.parts[i]));
#else
    return lowest > x.parts[i] ? lowest : x.parts[i];
#endif
  });
}

// The exponential function of numbers up to 0; 0 below -87.
[[gnu::always_inline]] inline Reals exp_of(const Reals& x) {
  return cleared(x < broadcast(-87.0f), exp_within(bounded_below(x)));
}

// -|x|
[[gnu::always_inline]] inline Reals with_sign(const Reals& x) {
  constexpr std::int32_t sign = -0x7fffffff - 1;
  return map_registers<Reals>([&](int i) __attribute__((always_inline)) {
    return reinterpret_cast<FloatRegister>(reinterpret_cast<IntRegister>(x.parts[i]) | sign);
  });
}

// 1 / (1 + exp(-x)), of numbers below -87 that of -87.
[[gnu::always_inline]] inline Reals sigmoid_of(const Reals& x) {
  const Reals one = broadcast(1.0f), power = exp_within(bounded_below(with_sign(x)));
  return selected(x < broadcast(0.0f), power, one) / (one + power);
}

// x * (0.5 + erf(x / sqrt 2) / 2), where a rational function is near the latter: up to 0.5, which
// it has beyond 5.4.
[[gnu::always_inline]] inline Reals gelu_of(const Reals& x) {
  const Reals z = clamped(x, broadcast(-5.4f), broadcast(5.4f)), square = z * z;
  Reals above = broadcast(7.03916658e-06f), below = broadcast(5.8224623e-07f);
  for (const float factor : {0.000390409201f, 0.00601988379f, 0.056449499f, 0.398941666f})
    above = above * square + broadcast(factor);
  for (const float factor : {0.000140141114f, 0.0031472065f, 0.0414668061f, 0.308154553f, 1.0f})
    below = below * square + broadcast(factor);
  const Reals half = broadcast(0.5f);
  return x * (half + clamped(z * above / below, broadcast(-0.5f), half));
}

}  // namespace
