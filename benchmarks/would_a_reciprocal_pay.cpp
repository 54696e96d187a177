// SPDX-License-Identifier: Apache-2.0
// Would a correctly rounded quotient be faster by a reciprocal than by a division? The loop of
// IntQuant per tensor, with the ways to get x / scale, beside a copy:
//
//     g++ -O3 -std=c++20 -ffp-contract=off -fno-math-errno -fno-trapping-math -mfma LEVEL FILE
//
// with LEVEL -mavx2, or -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

float quantized(float quotient, float scale) {
  float y = quotient > 7.0f ? 7.0f : quotient;
  y = y < -8.0f ? -8.0f : y;
  return std::nearbyint(y) * scale;
}

template <class Quotient>
void for_each(const std::vector<float>& x, std::vector<float>& out, float scale,
              Quotient quotient) {
  const float* const from = x.data();
  float* const to = out.data();
  const auto size = static_cast<long>(x.size());
#pragma GCC ivdep
  for (long i = 0; i < size; ++i) to[i] = quantized(quotient(from[i]), scale);
}

using Loop = void (*)(const std::vector<float>& x, std::vector<float>& out, float scale);
struct Way {
  const char* name;
  Loop loop;
};
const std::array ways{
    Way{"copy", [](const auto& x, auto& out,
                   float) { std::memcpy(out.data(), x.data(), x.size() * sizeof(float)); }},
    Way{"division",
        [](const auto& x, auto& out, float scale) {
          for_each(x, out, scale, [=](float each) { return each / scale; });
        }},
    // Wrong in the last place for one quotient in four: what the division costs at most.
    Way{"bare reciprocal",
        [](const auto& x, auto& out, float scale) {
          const float reciprocal = 1 / scale;
          for_each(x, out, scale, [=](float each) { return each * reciprocal; });
        }},
    // Right wherever the quotient is normal: a product of 53 bits is no further from the quotient
    // than midpoints of 24 bits are.
    Way{"in float64",
        [](const auto& x, auto& out, float scale) {
          const double reciprocal = 1 / static_cast<double>(scale);
          for_each(x, out, scale,
                   [=](float each) { return static_cast<float>(each * reciprocal); });
        }},
    // Right inside the guard, which also keeps -0, infinities and NaN; what is outside would have
    // to be divided after all.
    Way{"Markstein",
        [](const auto& x, auto& out, float scale) {
          const float reciprocal = 1 / scale;
          for_each(x, out, scale, [=](float each) {
            const float near = each * reciprocal;
            const float corrected = std::fma(std::fma(-near, scale, each), reciprocal, near);
            const float magnitude = std::fabs(near);
            return magnitude > 1e-25f && magnitude < 1e25f ? corrected : near;
          });
        }},
};

}  // namespace

int main() {
  for (const long size : {4L << 10, 64L << 10, 16L << 20}) {
    std::vector<float> x(static_cast<std::size_t>(size)), out(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3 * std::sin(static_cast<float>(i));
    std::array<double, ways.size()> best;
    best.fill(1e9);
    const long repeats = std::max(1L, (4L << 20) / size);
    for (int round = 0; round < 15; ++round)
      for (std::size_t way = 0; way < ways.size(); ++way) {
        const auto start = std::chrono::steady_clock::now();
        for (long i = 0; i < repeats; ++i) ways[way].loop(x, out, 0.1f);
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
        best[way] = std::min(best[way], time.count());
      }
    std::printf("%5ld Ki:", size >> 10);
    for (std::size_t way = 1; way < ways.size(); ++way)
      std::printf("  %s %.2f", ways[way].name, best[way] / best[0]);
    std::puts(" copies");
  }
}
