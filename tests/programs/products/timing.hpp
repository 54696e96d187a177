// SPDX-License-Identifier: Apache-2.0
// Timing of layers of well-known networks.
#pragma once
#include <functional>

#include "memory.hpp"

namespace {

struct Shape {
  const char* name;
  std::int64_t rows, height, width, channels, out, kernel, stride, pad;
  std::int64_t groups;
};

constexpr Shape shapes[] = {
    {"tfc1 b1", 1, 1, 1, 784, 64, 1, 1, 0, 1},
    {"tfc2 b1", 1, 1, 1, 64, 64, 1, 1, 0, 1},
    {"tfc1 b64", 64, 1, 1, 784, 64, 1, 1, 0, 1},
    {"cnv2 3x3x64", 1, 30, 30, 64, 64, 3, 1, 0, 1},
    {"cnv4 3x3x128", 1, 12, 12, 128, 128, 3, 1, 0, 1},
    {"cnv6 3x3x256", 1, 3, 3, 256, 256, 3, 1, 0, 1},
    {"first 3x3x3 s2", 1, 224, 224, 3, 32, 3, 2, 1, 1},
    {"dw 112x32", 1, 112, 112, 32, 32, 3, 1, 1, 32},
    {"dw 14x512", 1, 14, 14, 512, 512, 3, 1, 1, 512},
    {"pw 56x128", 1, 56, 56, 128, 128, 1, 1, 0, 1},
    {"pw 14x512", 1, 14, 14, 512, 512, 1, 1, 0, 1},
    {"res 3x3x64 56", 1, 56, 56, 64, 64, 3, 1, 1, 1},
    {"res 3x3x512 7", 1, 7, 7, 512, 512, 3, 1, 1, 1},
    {"res 3x3x128 28", 1, 28, 28, 128, 128, 3, 1, 1, 1},
    {"res 3x3x256 14", 1, 14, 14, 256, 256, 3, 1, 1, 1},
    {"small 3x3x16 64", 1, 64, 64, 16, 16, 3, 1, 1, 1},
    {"small 3x3x32 64", 1, 64, 64, 32, 32, 3, 1, 1, 1},
    {"first 3x3x3 64", 1, 64, 64, 3, 64, 3, 1, 1, 1},
    {"last 3x3x64 64", 1, 64, 64, 64, 4, 3, 1, 1, 1},
    {"expand 32x16", 1, 32, 32, 16, 64, 1, 1, 0, 1},
    {"gemv 4096", 1, 1, 1, 4096, 4096, 1, 1, 0, 1},
};

// Epilogues of products with 256 codes.
enum class Curve {
  line,        // a multiplication, an addition and a rounding
  steps,       // a bias, a division, an addition and a rounding, replayed in floats
  hard_swish,  // the same after HardSwish, replayed in floats
  thresholds,  // 255 thresholds close to a line
  swish,       // 255 thresholds of the increasing part of Swish
  pieces,      // all of Swish
};

struct Kind {
  const char* name;
  std::int64_t weight_bits;
  std::vector<std::int32_t> values;
  std::int64_t lowest, step, levels, out_levels;
  Curve curve = Curve::line;
};

void fill_thresholds(Layer& at, const std::function<std::int32_t(std::int64_t)>& threshold) {
  const std::int64_t count = at.target.levels - 1;
  at.integers[0].assign(static_cast<std::size_t>(at.target.channels), 1);
  for (std::int64_t i = 0; i < at.target.channels * count; ++i)
    at.integers[1].push_back(threshold(i % count));
  at.product.epilogue = Thresholds{at.integers[0], at.integers[1]};
}

// First sum of code i + 1 after Swish: the inverse of y = x / (1 + exp(-x)) by bisection. The sum
// before which it falls to code i, if `high` is far below the minimum.
std::int32_t swish_threshold(std::int64_t i, double high = 30, double code = 0.1) {
  double low = -1.2784;  // Swish increases from its minimum on
  const double aim = -0.2784 + code * (static_cast<double>(i) + 0.5);
  for (int round = 0; round < 60; ++round) {
    const double middle = (low + high) / 2;
    (middle / (1 + std::exp(-middle)) < aim ? low : high) = middle;
  }
  return static_cast<std::int32_t>(std::lround(1000 * low));
}

void fill_epilogue(Layer& at, Curve curve) {
  if (at.target.levels < 256) return fill_thresholds(at, [](auto i) { return 10 * int(i); });
  if (curve == Curve::thresholds)
    return fill_thresholds(at, [](auto i) { return 100 * int(i) + int(i * i) % 7; });
  if (curve == Curve::swish) return fill_thresholds(at, [](auto i) { return swish_threshold(i); });
  if (curve == Curve::pieces) {
    constexpr double code = 0.012;
    const auto codes = static_cast<int>(0.2784 / code);  // of the falling part
    for (std::int64_t channel = 0; channel < at.target.channels; ++channel)
      for (int i = -codes; i < 256; ++i) {
        at.entries.push_back(static_cast<std::uint8_t>(std::abs(i)));
        if (i > -codes)
          at.integers[0].push_back(i <= 0 ? swish_threshold(-i, -30, code)
                                          : swish_threshold(i - 1, 30, code));
      }
    at.product.epilogue = Piecewise{at.integers[0], at.entries};
    return;
  }
  if (curve == Curve::steps) {
    static constexpr float scale[] = {0.001f}, bias[] = {0.3f}, step[] = {0.0997f}, zero[] = {8};
    at.product.epilogue = Rounded{scale, {{0, bias}, {4, step}, {0, zero}}, 0};
    return;
  }
  if (curve == Curve::line) {
    at.floats[0].assign(static_cast<std::size_t>(at.target.channels), 0.01f);
    at.floats[1].assign(static_cast<std::size_t>(at.target.channels), 1.0f);
    at.product.epilogue = Affine{at.floats[0], at.floats[1], 0};
    return;
  }
  static constexpr float scale[] = {0.001f}, bias[] = {0.5f}, sixth[] = {1.0f / 6}, half[] = {0.5f},
                         zero[] = {0}, one[] = {1}, codes[] = {20};
  at.product.epilogue = Rounded{
      scale,
      {{0, bias}, {7, zero}, {3, sixth}, {0, half}, {5, zero}, {6, one}, {9, zero}, {3, codes}},
      8};
}

struct Timed {
  std::string kernel;
  double macs, seconds;  // of a call
};

// Times a layer whose source has random indices in a coding.
Timed timed(const Layer& at, Coding coding) {
  const Storage from(coding, at.source, Border::of(at.product.window)), to(coding, at.target, {});
  std::vector<std::uint8_t> indices(
      static_cast<std::size_t>(at.rows * at.source.height * at.source.width * at.source.channels));
  for (auto& index : indices) index = static_cast<std::uint8_t>(number(0, at.source.levels - 1));
  const Memory source = stored(from, indices, at.rows), target(to, at.rows);
  const PackedProduct packed(at.task(), from, to, selected_level());
  const Part part{0, at.rows, 0, at.target.height, 0, at.target.channels};
  const auto macs = static_cast<double>(packed.multiplications() * at.rows);
  double best = 1e9;
  const int repeats = std::max(1, static_cast<int>(2e8 / macs / 30));
  for (int round = 0; round < 25; ++round) {
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) packed.run(source.data, target.data, part);
    best = std::min(
        best,
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() / repeats);
  }
  return {std::string(packed.kernel()), macs, best};
}

int time_all(std::string_view level, const std::string& filter) {
  select_level(level);
  std::vector<std::int32_t> four, eight;
  for (int i = 0; i < 16; ++i) four.push_back(i - 8);
  for (int i = 0; i < 256; ++i) eight.push_back(i - 128);
  const Kind kinds[] = {{"w1a1", 1, {-1, 1}, -1, 2, 2, 2},
                        {"w1a2", 1, {-1, 1}, 0, 1, 4, 4},
                        {"w1t", 1, {-1, 1}, -1, 1, 3, 3},
                        {"tt", 2, {-1, 0, 1}, -1, 1, 3, 3},
                        {"w2a2", 2, {0, 1, -2, -1}, 0, 1, 4, 4},
                        {"w2a8", 2, {0, 1, -2, -1}, 0, 1, 256, 256},
                        {"w4a4", 4, four, 0, 1, 16, 16},
                        {"w8a8", 8, eight, 0, 1, 256, 256},
                        {"w8a8 steps", 8, eight, 0, 1, 256, 256, Curve::steps},
                        {"w8a8 hard_swish", 8, eight, 0, 1, 256, 256, Curve::hard_swish},
                        {"w8a8 thresholds", 8, eight, 0, 1, 256, 256, Curve::thresholds},
                        {"w8a8 swish", 8, eight, 0, 1, 256, 256, Curve::swish},
                        {"w8a8 pieces", 8, eight, 0, 1, 256, 256, Curve::pieces}};
  for (const Shape& shape : shapes)
    for (const Kind& kind : kinds) {
      const std::string name = std::string(shape.name) + " " + kind.name;
      if (name.find(filter) == std::string::npos) continue;
      Layer at;
      at.rows = shape.rows;
      at.source = {shape.height, shape.width, shape.channels, kind.lowest, kind.step, kind.levels};
      at.target = {0, 0, shape.out, 0, 1, kind.out_levels};
      at.product.window = {shape.kernel, shape.kernel, shape.stride, shape.stride, 1, 1,
                           shape.pad,    shape.pad,    shape.pad,    shape.pad};
      at.product.groups = shape.groups, at.product.weight_bits = kind.weight_bits;
      at.values = kind.values;
      at.fit_target();
      at.draws = kind.values.size() == 256 ? 4 : 1;
      at.fill_weights();
      fill_epilogue(at, kind.curve);
      const Timed result = timed(at, PackedProduct::preferred_coding(at.task(), selected_level()));
      std::printf("%-22s %-10s %10.2f us %9.1f GMAC/s\n", name.c_str(), result.kernel.c_str(),
                  result.seconds * 1e6, result.macs / result.seconds / 1e9);
      std::fflush(stdout);
    }
  return 0;
}

}  // namespace
