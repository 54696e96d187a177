// SPDX-License-Identifier: Apache-2.0
#include "winograd.hpp"

#include <algorithm>
#include <cstring>

namespace anybit::lowbit {

namespace {

constexpr std::int64_t edge = 3;  // of the window
constexpr int transform[winograd_inputs][edge] = {{6, 0, 0}, {-1, -1, -1}, {-1, 1, -1},
                                                  {1, 2, 4}, {1, -2, 4},   {0, 0, 6}};

constexpr std::int64_t largest_input = 255 * 68, largest_weight = 128 * 49;
static_assert(largest_input < 32768 && largest_weight < 32768 &&
              2 * largest_input * largest_weight < std::int64_t{1} << 31);

std::int64_t divide_up(std::int64_t size, std::int64_t by) { return (size + by - 1) / by; }

// Cycles, measured on an Ice Lake server by tests/programs/products. Levels without them compute
// directly.
struct Cost {
  double direct, product;     // of a multiplication, by bytes and by words
  double tile, source, sums;  // of a square, and of each of its channels
};

constexpr Cost cost_of(Level level) {
  switch (level) {
    case Level::baseline:
      return {1 / 11.0, 1 / 12.0, 200, 24, 36};
    case Level::avx2:
      return {1 / 23.0, 1 / 23.0, 200, 12, 18};
    case Level::avx512:
      return {1 / 28.0, 1 / 32.0, 200, 12, 18};
    default:
      return {0, 0, 0, 0, 0};
  }
}

bool has_window(const ProductTask& task) {
  const Window& w = task.product->window;
  return w.kernel_height == edge && w.kernel_width == edge && w.stride_height == 1 &&
         w.stride_width == 1 && w.dilation_height == 1 && w.dilation_width == 1 &&
         task.product->groups == 1;
}

// Whether the sums of all windows have at most 26 bits, with their sign.
bool sums_fit(const ProductTask& task, const Weights& weights) {
  constexpr std::int64_t most = (std::int64_t{1} << 25) - 1;
  for (std::int64_t channel = 0; channel < weights.channels; ++channel) {
    std::int64_t positive = 0, negative = 0;
    const std::int8_t* const own = weights.of(channel);
    for (std::int64_t i = 0; i < weights.taps * weights.inner; ++i)
      (own[i] > 0 ? positive : negative) += own[i];
    if (std::max(positive, -negative) * (task.source.levels - 1) > most) return false;
  }
  return true;
}

std::int64_t weight_bytes(const ProductTask& task) {
  return divide_up(task.target.channels, panel_channels) * winograd_positions *
         divide_up(task.source.channels, 2) * panel_channels * 4;
}

std::int64_t padded(std::int64_t channels) { return divide_up(channels, 32) * 32; }

// As many squares as have their transformed inputs in the L2 cache, but not more than have the
// products of some panels in the L1 cache.
int tiles_together(std::int64_t channels, const ProductKernels& kernels) {
  constexpr std::int64_t near_words = 216 * 1024;
  const std::int64_t rows = kernels.winograd_rows;
  const std::int64_t tiles = std::min<std::int64_t>(
      near_words / (winograd_positions * padded(channels)), most_winograd_tiles);
  return static_cast<int>(std::max(rows, tiles / rows * rows));
}

bool takes_less_time(const ProductTask& task, const ProductKernels& kernels, const Cost& cost) {
  const auto number = [](std::int64_t n) { return static_cast<double>(n); };
  const Tensor &from = task.source, &to = task.target;
  const std::int64_t channels = divide_up(to.channels, panel_channels) * panel_channels,
                     row = divide_up(edge * from.channels, 4) * 4,
                     tiles = divide_up(to.height, winograd_outputs) *
                             divide_up(to.width, winograd_outputs);
  const double direct = number(to.height * to.width * edge * row * channels) * cost.direct;
  const double products =
      number(tiles * winograd_positions * divide_up(from.channels, 2) * 2 * channels) *
      cost.product;
  const double transforms = number(tiles) * (cost.tile + cost.source * number(from.channels) +
                                             cost.sums * number(channels));
  // Few squares are bound by reading the weights: from the L2 cache or beyond, bytes per cycle.
  constexpr std::int64_t near_bytes = 512 * 1024;
  const std::int64_t bytes = weight_bytes(task);
  const double reading = number(bytes * divide_up(tiles, tiles_together(from.channels, kernels))) /
                         (bytes <= near_bytes ? 16 : 4);
  constexpr double margin = 0.85;
  return std::max(products, reading) + transforms < direct * margin;
}

// Writes the transformed weights of a target and a source channel; positions are `position` bytes
// apart.
void transform_weights(const std::int8_t* weight, std::int64_t inner, std::byte* to,
                       std::ptrdiff_t position) {
  int half[winograd_inputs][edge];
  for (int i = 0; i < winograd_inputs; ++i)
    for (int x = 0; x < edge; ++x) {
      half[i][x] = 0;
      for (int y = 0; y < edge; ++y) half[i][x] += transform[i][y] * weight[(y * edge + x) * inner];
    }
  for (int i = 0; i < winograd_inputs; ++i)
    for (int j = 0; j < winograd_inputs; ++j, to += position) {
      int sum = 0;
      for (int x = 0; x < edge; ++x) sum += transform[j][x] * half[i][x];
      const auto word = static_cast<std::int16_t>(sum);
      std::memcpy(to, &word, sizeof word);
    }
}

}  // namespace

std::int64_t Winograd::position(std::int64_t tiles) const {
  return tiles * channels + winograd_gap;
}

bool prefers_winograd(const ProductTask& task, const Weights& weights, const WeightForm& form,
                      Scheme scheme, Level level) {
  const ProductKernels& kernels = kernels_of<ProductKernels>(level);
  const Cost cost = cost_of(level);
  if (kernels.winograd_source == nullptr || cost.direct == 0 || !is_dot(scheme)) return false;
  if (!has_window(task) || task.source.channels > most_winograd_channels) return false;
  // Sums of many products in 16 bits take as little time.
  constexpr std::int64_t many_terms = 128;
  const auto dot = static_cast<std::size_t>(scheme);
  const bool is_short = dot < kernels.short_dots.size() && kernels.short_dots[dot] != nullptr &&
                        terms_in_16_bits(task, form) >= many_terms;
  // Transformed weights are large: other products of the program need memory, too. Its limit is at
  // least 32 times the size of a program.
  constexpr std::int64_t most_growth = 24;
  const auto encoded = static_cast<std::int64_t>(task.product->weights.size());
  return !is_short && weight_bytes(task) <= std::min(task.most_bytes / 4, most_growth * encoded) &&
         takes_less_time(task, kernels, cost) && sums_fit(task, weights);
}

Winograd pack_winograd(const ProductTask& task, const Weights& weights,
                       const ProductKernels& kernels) {
  Winograd to;
  to.steps = static_cast<int>(divide_up(weights.inner, 2));
  to.channels = padded(weights.inner);
  to.most_tiles = tiles_together(weights.inner, kernels);
  const std::ptrdiff_t step = panel_channels * 4, position = to.steps * step;
  to.panel = winograd_positions * position;
  to.weights = room_for(weight_bytes(task), task.most_bytes);
  for (std::int64_t channel = 0; channel < weights.channels; ++channel)
    for (std::int64_t c = 0; c < weights.inner; ++c)
      transform_weights(weights.of(channel) + c, weights.inner,
                        to.weights.data() + channel / panel_channels * to.panel + c / 2 * step +
                            channel % panel_channels * 4 + c % 2 * 2,
                        position);
  return to;
}

}  // namespace anybit::lowbit
