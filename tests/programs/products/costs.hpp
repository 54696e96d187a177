// SPDX-License-Identifier: Apache-2.0
// Measured row of the cost table in packed_weights.cpp.
#pragma once
#include "timing.hpp"

namespace {

// Cycles per second, from a chain of additions of one cycle each.
double clock_rate() {
  constexpr std::int64_t count = 1'000'000;
  double best = 1e9;
  for (int round = 0; round < 50; ++round) {
    const auto began = std::chrono::steady_clock::now();
    for (std::int64_t i = 0, x = 0; i < count; ++i) {
      x += 3;
      asm volatile("" : "+r"(x));
    }
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  return count / best;
}

struct CodedKind {
  std::int64_t weight_bits;
  std::vector<std::int32_t> values;
  std::int64_t levels;
  Coding coding;
};

// A dense layer in the L1 cache, so large that the epilogue hardly counts.
Layer cost_layer(const CodedKind& kind) {
  Layer at;
  at.rows = 48;
  at.source = {1, 1, 768, 0, 1, kind.levels};
  at.target = {0, 0, 64, 0, 1, std::min<std::int64_t>(kind.levels, 4)};
  at.product.window = {1, 1, 1, 1, 1, 1, 0, 0, 0, 0};
  at.product.groups = 1, at.product.weight_bits = kind.weight_bits, at.values = kind.values;
  at.fit_target();
  at.fill_weights();
  fill_epilogue(at, Curve::line);
  return at;
}

// Prints the cycles per 32 values and 16 channels of each kind of kernel, as `Cost` has them.
int print_costs(std::string_view level) {
  try {
    select_level(level);
  } catch (const Error& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  std::vector<std::int32_t> four;
  for (int i = 0; i < 16; ++i) four.push_back(i - 8);
  const CodedKind kinds[] = {{4, four, 16, Coding::bytes},
                             {1, {-1, 1}, 4, Coding::planes},
                             {2, {-1, 0, 1}, 2, Coding::bits},
                             {1, {-1, 1}, 2, Coding::bits},
                             {2, {0, 1, -2, -1}, 4, Coding::nibbles}};
  const double clock = clock_rate();
  double dot = 0, pairs = 0, rows = 0;
  int pair_kinds = 0, row_kinds = 0;
  for (const CodedKind& kind : kinds) {
    try {
      const Timed result = timed(cost_layer(kind), kind.coding);
      const double cycles = result.seconds * clock / (result.macs / (32 * panel_channels));
      const bool is_row = result.kernel.starts_with("rows");
      if (kind.coding == Coding::bytes) dot = cycles;
      else if (is_row) rows += cycles / (word_bytes(kind.coding) / 4), ++row_kinds;
      else pairs += cycles / (result.kernel.ends_with("12") ? 2 : 1), ++pair_kinds;
      std::printf("%-10s %6.2f cycles\n", result.kernel.c_str(), cycles);
    } catch (const Error&) {
      // The level has no kernel for this coding.
    }
  }
  std::printf("%s: {%.2g, %.2g", std::string(level).c_str(), dot, pairs / std::max(1, pair_kinds));
  if (row_kinds > 0) std::printf(", %.2g", rows / row_kinds);
  std::printf("}\n");
  return 0;
}

}  // namespace
