// SPDX-License-Identifier: Apache-2.0
// Transforms of Winograd's algorithm F(4x4, 3x3), see winograd.hpp. All numbers wrap around.
#pragma once
#include "_native/lowbit/lanes.hpp"
#include "_native/lowbit/product_kernels.hpp"

namespace {

using anybit::lowbit::winograd_inputs;
using anybit::lowbit::winograd_outputs;
using anybit::lowbit::WinogradSource;
using anybit::lowbit::WinogradSums;

// Six inputs along one axis. The sums are those of
//   4  0 -5  0  1  0      0 -4 -4  1  1  0      0  4 -4 -1  1  0
//   0 -2 -1  2  1  0      0  2 -1 -2  1  0      0  4  0 -5  0  1.
template <class Vector>
[[gnu::always_inline]] inline void transform_inputs(const Vector (&x)[winograd_inputs],
                                                    Vector (&y)[winograd_inputs]) {
  const Vector near = x[4] - x[2], far = x[3] - x[1], twice = far + far;
  const Vector even = x[4] - (x[2] << 2), odd = x[3] - (x[1] << 2);
  y[0] = ((x[0] - x[2]) << 2) + near;
  y[1] = even + odd, y[2] = even - odd;
  y[3] = near + twice, y[4] = near - twice;
  y[5] = (x[5] - x[3]) - (twice + twice);
}

// Four outputs along one axis: 24, 12, 6 and 6 times the sums of three products.
template <class Vector>
[[gnu::always_inline]] inline void transform_outputs(const Vector (&m)[winograd_inputs],
                                                     Vector (&y)[winograd_outputs]) {
  const Vector a = m[1] + m[2], b = m[1] - m[2], c = m[3] + m[4], d = m[3] - m[4];
  y[0] = m[0] + (a << 2) + c;
  y[1] = b + b + d;
  y[2] = a + c;
  y[3] = b + d + d + m[5];
}

constexpr int winograd_shifts[winograd_outputs] = {3, 2, 1, 1};
constexpr std::uint32_t inverse_of_nine = 954437177;
static_assert(inverse_of_nine * 9u == 1);

void winograd_source(const WinogradSource& at) {
  using Words = UnsignedShortRegister;
  constexpr int lanes = register_bytes / 2;
  using Bytes [[gnu::vector_size(lanes)]] = std::uint8_t;
  for (std::int64_t channel = 0; channel < at.channels; channel += lanes) {
    Words half[winograd_inputs][winograd_inputs];  // [column][position of the lines]
    repeat<winograd_inputs>([&](int j) __attribute__((always_inline)) {
      Words x[winograd_inputs];
      repeat<winograd_inputs>([&](int i) __attribute__((always_inline)) {
        x[i] = __builtin_convertvector(read<Bytes>(at.lines[i] + at.columns[j] + channel), Words);
      });
      transform_inputs(x, half[j]);
    });
    repeat<winograd_inputs>([&](int i) __attribute__((always_inline)) {
      Words x[winograd_inputs], y[winograd_inputs];
      repeat<winograd_inputs>([&](int j) __attribute__((always_inline)) { x[j] = half[j][i]; });
      transform_inputs(x, y);
      std::int16_t* const to = at.to + i * winograd_inputs * at.position + channel;
      repeat<winograd_inputs>(
          [&](int j) __attribute__((always_inline)) { write(to + j * at.position, y[j]); });
    });
  }
}

void winograd_sums(const WinogradSums& at) {
  constexpr int lanes = register_bytes / 4;
  for (int channel = 0; channel < at.channels; channel += lanes) {
    UnsignedRegister half[winograd_inputs][winograd_outputs];  // [column][line]
    repeat<winograd_inputs>([&](int j) __attribute__((always_inline)) {
      UnsignedRegister m[winograd_inputs];
      repeat<winograd_inputs>([&](int i) __attribute__((always_inline)) {
        m[i] = read<UnsignedRegister>(at.sums + (i * winograd_inputs + j) * at.position + channel);
      });
      transform_outputs(m, half[j]);
    });
    repeat<winograd_outputs>([&](int i) __attribute__((always_inline)) {
      if (i >= at.lines) return;
      UnsignedRegister m[winograd_inputs], y[winograd_outputs];
      repeat<winograd_inputs>([&](int j) __attribute__((always_inline)) { m[j] = half[j][i]; });
      transform_outputs(m, y);
      std::int32_t* const to = at.to + i * at.line + channel;
      repeat<winograd_outputs>([&](int j) __attribute__((always_inline)) {
        if (j < at.columns)
          write(to + j * at.pixel,
                IntRegister(y[j] * inverse_of_nine) >> (winograd_shifts[i] + winograd_shifts[j]));
      });
    });
  }
}

}  // namespace
