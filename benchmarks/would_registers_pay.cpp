// SPDX-License-Identifier: Apache-2.0
// Would quantizing per channel be faster if the parameters of a channel stayed in registers, or if
// results were streamed past the caches? The loop of IntQuant on rows of 64 elements, with the
// parameters along the last axis or one set for each row, beside a copy:
//
//     g++ -O2 -std=c++20 -Wno-psabi -ffp-contract=off LEVEL FILE
//
// with LEVEL -mavx2, or -mavx512f.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace {

#ifdef __AVX512F__
constexpr int width = 16;
#else
constexpr int width = 8;
#endif
using Vector [[gnu::vector_size(4 * width)]] = float;

constexpr long row = 64;
struct Channels {
  alignas(64) float scale[row], zeropt[row], lowest[row], highest[row];
};
Channels channels;

struct Parameters {
  Vector scale, zeropt, lowest, highest;
};

Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }

Parameters of_columns(long column) {
  return {load(channels.scale + column), load(channels.zeropt + column),
          load(channels.lowest + column), load(channels.highest + column)};
}

Parameters of_row(long number) {
  const long channel = number % row;
  const Vector zeros{};
  return {zeros + channels.scale[channel], zeros + channels.zeropt[channel],
          zeros + channels.lowest[channel], zeros + channels.highest[channel]};
}

Vector quantized(Vector x, const Parameters& p) {
  Vector y = x / p.scale + p.zeropt;
  y = y > p.highest ? p.highest : y;
  y = y < p.lowest ? p.lowest : y;
  constexpr float integers = 3 << 22;  // from here on floats are integers, so that a sum rounds
  y = (y + integers) - integers;
  return (y - p.zeropt) * p.scale;
}

void store(float* to, Vector x) { *reinterpret_cast<Vector*>(to) = x; }

void stream(float* to, Vector x) {
#ifdef __AVX512F__
  _mm512_stream_ps(to, x);
#else
  _mm256_stream_ps(to, x);
#endif
}

template <void (*write)(float*, Vector)>
void along_axis_1(const float* x, float* out, long count) {
  for (long i = 0; i < count; ++i) {
    const Parameters parameters = of_row(i);
    for (long at = i * row; at < (i + 1) * row; at += width)
      write(out + at, quantized(load(x + at), parameters));
  }
  _mm_sfence();
}

template <void (*write)(float*, Vector)>
void along_last_axis(const float* x, float* out, long count) {
  for (long i = 0; i < count; ++i)
    for (long c = 0; c < row; c += width)
      write(out + i * row + c, quantized(load(x + i * row + c), of_columns(c)));
  _mm_sfence();
}

// A few columns through many rows, while their parameters are in registers.
template <long height>
void tiles(const float* x, float* out, long count) {
  for (long first = 0; first < count; first += height)
    for (long c = 0; c < row; c += width) {
      const Parameters parameters = of_columns(c);
      for (long i = first; i < std::min(count, first + height); ++i)
        store(out + i * row + c, quantized(load(x + i * row + c), parameters));
    }
}

void copy(const float* x, float* out, long count) {
  std::memcpy(out, x, static_cast<std::size_t>(count * row) * sizeof(float));
}

struct Way {
  const char* name;
  void (*loop)(const float* x, float* out, long count);
};
const std::array ways{Way{"copy", copy},
                      Way{"axis 1", along_axis_1<store>},
                      Way{"axis 1, streamed", along_axis_1<stream>},
                      Way{"last axis", along_last_axis<store>},
                      Way{"last axis, streamed", along_last_axis<stream>},
                      Way{"last axis, tiles of 16 rows", tiles<16>},
                      Way{"last axis, tiles of 64 rows", tiles<64>}};

double seconds(const Way& way, const float* x, float* out, long count, long calls) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (long i = 0; i < calls; ++i) way.loop(x, out, count);
  return std::chrono::duration<double>(Clock::now() - start).count() / calls;
}

void compare(long elements) {
  const auto memory = [elements] {
    const auto bytes = static_cast<std::size_t>(elements) * sizeof(float);
    return std::unique_ptr<float, void (*)(void*)>(
        static_cast<float*>(std::aligned_alloc(4096, bytes)), std::free);
  };
  const auto x = memory(), out = memory();
  for (long i = 0; i < elements; ++i) {
    x.get()[i] = static_cast<float>((i * 2654435761u >> 8) % 2000) / 100 - 10;
    out.get()[i] = 0;
  }
  std::array<double, ways.size()> best;
  best.fill(1e9);
  const long calls = std::max(1l, (1l << 20) / elements);
  for (int round = 0; round < (elements > (4 << 20) ? 60 : 400); ++round)
    for (std::size_t i = 0; i < ways.size(); ++i)
      best[i] = std::min(best[i], seconds(ways[i], x.get(), out.get(), elements / row, calls));
  std::printf("\n%ld Ki float32, a copy takes %.1f us\n", elements >> 10, 1e6 * best[0]);
  for (std::size_t i = 1; i < ways.size(); ++i)
    std::printf("%-28s %.2f\n", ways[i].name, best[i] / best[0]);
}

}  // namespace

int main() {
  for (long i = 0; i < row; ++i) {
    channels.scale[i] = 0.1f + 0.013f * static_cast<float>(i);
    channels.zeropt[i] = 0;
    channels.lowest[i] = -8;
    channels.highest[i] = 7;
  }
  for (const long kibi : {64, 512, 16384}) compare(kibi << 10);
}
