// SPDX-License-Identifier: Apache-2.0
// Random products, and their values in plain loops over integers.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "_native/isa/levels.hpp"
#include "_native/lowbit/packed_product.hpp"

namespace {

using anybit::Error;
using anybit::Level;
using anybit::name_of;
using anybit::select_level;
using anybit::selected_level;
using namespace anybit::lowbit;

std::mt19937 random_bits(1);

std::int64_t number(std::int64_t lowest, std::int64_t highest) {
  return std::uniform_int_distribution<std::int64_t>(lowest, highest)(random_bits);
}

template <class T>
T one_of(std::initializer_list<T> values) {
  return values.begin()[number(0, static_cast<std::int64_t>(values.size()) - 1)];
}

struct Layer {
  Tensor source{}, target{};
  Product product{};
  std::vector<std::uint8_t> bits;
  std::vector<std::int32_t> values, integers[2];
  std::vector<float> floats[5];
  std::vector<std::uint8_t> entries, late;
  std::vector<std::int8_t> weights;  // decoded from the bits
  std::int64_t rows = 1;
  // A weight is the mean of `draws` random ones: with 4, few are near the ends, as after training.
  std::int64_t draws = 1;
  bool largest_codes = false;  // of all inputs

  ProductTask task() const { return {&product, source, target}; }

  void fit_target() {
    const Window& w = product.window;
    target.height =
        (source.height + w.pad_top + w.pad_bottom - (w.kernel_height - 1) * w.dilation_height - 1) /
            w.stride_height +
        1;
    target.width =
        (source.width + w.pad_left + w.pad_right - (w.kernel_width - 1) * w.dilation_width - 1) /
            w.stride_width +
        1;
  }

  void fill_weights() {
    const std::int64_t count = target.channels * product.window.kernel_height *
                               product.window.kernel_width * source.channels / product.groups;
    bits.assign(static_cast<std::size_t>((count * product.weight_bits + 7) / 8), 0);
    std::size_t place = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t index = 0;
      for (std::int64_t draw = 0; draw < draws; ++draw)
        index += number(0, static_cast<std::int64_t>(values.size()) - 1);
      index /= draws;
      weights.push_back(static_cast<std::int8_t>(values[static_cast<std::size_t>(index)]));
      for (int bit = 0; bit < product.weight_bits; ++bit, ++place)
        bits[place / 8] |= static_cast<std::uint8_t>((index >> bit & 1) << place % 8);
    }
    product.weights = bits;
    product.values = values;
  }

  std::int64_t sum(const std::uint8_t* indices, std::int64_t row, std::int64_t y, std::int64_t x,
                   std::int64_t channel) const {
    const Window& w = product.window;
    const std::int64_t inner = source.channels / product.groups;
    const std::int64_t first = channel / (target.channels / product.groups) * inner;
    const std::int8_t* weight =
        &weights[static_cast<std::size_t>(channel * w.kernel_height * w.kernel_width * inner)];
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < w.kernel_height; ++i)
      for (std::int64_t j = 0; j < w.kernel_width; ++j, weight += inner) {
        const std::int64_t v = y * w.stride_height + i * w.dilation_height - w.pad_top;
        const std::int64_t u = x * w.stride_width + j * w.dilation_width - w.pad_left;
        if (v < 0 || v >= source.height || u < 0 || u >= source.width) continue;
        const std::uint8_t* const pixel =
            indices + ((row * source.height + v) * source.width + u) * source.channels + first;
        for (std::int64_t c = 0; c < inner; ++c)
          sum += (source.lowest + source.step * pixel[c]) * weight[c];
      }
    return sum;
  }
};

void random_weights(Layer& at) {
  at.product.weight_bits = number(1, 8);
  const std::int64_t most = std::int64_t{1} << at.product.weight_bits;
  const auto kind = number(0, 5);
  if (kind == 0) at.values = {-1, 1}, at.product.weight_bits = 1;
  else if (kind == 1) at.values = {-1, 0, 1}, at.product.weight_bits = 2;
  else if (kind == 2) at.values = {0, 1, -2, -1}, at.product.weight_bits = 2;
  else if (kind == 3) at.values = {-3, 3}, at.product.weight_bits = 1;
  else
    for (std::int64_t i = 0; i < most; ++i)
      at.values.push_back(static_cast<std::int32_t>(
          kind == 4 ? i - most / 2 : one_of<std::int64_t>({number(-128, 127), -128, 127})));
}

void random_codes(Tensor& tensor) {
  tensor.levels = one_of<std::int64_t>({2, 2, 2, 3, 3, 4, 4, 8, 15, 16, 31, 128, 256});
  tensor.step = one_of<std::int64_t>({1, 1, 2, 3});
  tensor.lowest = one_of<std::int64_t>({0, 0, -1, -tensor.levels / 2, 5});
  if (tensor.levels == 2 && number(0, 1) == 0) tensor.lowest = -1, tensor.step = 2;
  if (tensor.levels == 3 && number(0, 1) == 0) tensor.lowest = -1, tensor.step = 1;
}

// A quantizer after a bias and perhaps bounds: half of the sums may be next to a tie.
void fill_quantizer(Layer& at, const std::vector<std::int64_t>& sums) {
  const auto [least, most] = std::minmax_element(sums.begin(), sums.end());
  const auto spread = static_cast<float>(*most - *least + 1);
  const float scale = one_of({0.1f, 0.7f, -1.0f / 3, 1e-4f});
  const float sums_per_code =
      std::max(2.0f, std::round(spread / static_cast<float>(at.target.levels)));
  for (std::int64_t c = 0; c < at.target.channels; ++c) {
    at.floats[0].push_back(scale * one_of({1.0f, 1.0f, 3.0f, 0.0f}));
    at.floats[1].push_back(scale * static_cast<float>(number(-9, 9)));
  }
  at.floats[2] = {scale * sums_per_code * one_of({1.0f, -1.0f, 0.9f})};
  at.floats[3] = {static_cast<float>(number(-20, 150))};
  at.floats[4] = {scale * sums_per_code * static_cast<float>(number(-5, 20))};
  std::vector<Step> steps = {{number(0, 2), at.floats[1]}};
  for (std::int64_t i = number(0, 2); i > 0; --i) steps.push_back({number(5, 6), at.floats[4]});
  steps.push_back({4, at.floats[2]});
  steps.push_back({0, at.floats[3]});
  at.product.epilogue = Rounded{at.floats[0], std::move(steps), number(-3, 20)};
}

// A multiplication and a shift that spread the levels over the sums, or over a part of them.
void fill_scaled(Layer& at, const std::vector<std::int64_t>& sums) {
  const auto channels = static_cast<std::size_t>(at.target.channels);
  const auto [least, most] = std::minmax_element(sums.begin(), sums.end());
  const auto spread = static_cast<double>(*most - *least + 1);
  for (std::size_t c = 0; c < channels; ++c) {
    const auto shift = number(0, one_of<std::int64_t>({20, 51}));
    const double slope = static_cast<double>(at.target.levels) / spread *
                         one_of({1.0, 1.0, -1.0, 5.0, 0.0}) * std::ldexp(1.0, int(shift));
    const auto multiplier =
        static_cast<std::int32_t>(std::clamp(slope, -2147483647.0, 2147483647.0));
    const std::int64_t some =
        sums[static_cast<std::size_t>(number(0, static_cast<std::int64_t>(sums.size()) - 1))];
    const std::int64_t index = number(0, at.target.levels) * (std::int64_t{1} << shift);
    const std::int64_t term = index - some * multiplier + number(-1, 1);
    at.integers[0].push_back(multiplier);
    at.integers[1].push_back(static_cast<std::int32_t>(static_cast<std::uint32_t>(term)));
    at.integers[1].push_back(static_cast<std::int32_t>(term >> 32));
    at.entries.push_back(static_cast<std::uint8_t>(shift));
  }
  const std::size_t bits = channels * static_cast<std::size_t>(at.target.levels);
  if (number(0, 1) == 0)
    for (std::size_t i = 0; i < (bits + 7) / 8; ++i)
      at.late.push_back(static_cast<std::uint8_t>(number(0, 255)));
  at.product.epilogue = Scaled{at.integers[0], at.integers[1], at.entries, at.late};
}

// Pieces of random codes, or a function that falls and rises; sums are in the border of some.
// Starts are random, or far from each other except some.
void fill_pieces(Layer& at, const std::vector<std::int64_t>& sums) {
  const std::int64_t most = at.target.levels - 1, count = number(1, one_of({3, 40, 512}));
  const bool bends = number(0, 2) > 0, is_even = number(0, 2) == 0;
  const auto [least, largest] = std::minmax_element(sums.begin(), sums.end());
  for (std::int64_t c = 0; c < at.target.channels; ++c) {
    std::vector<std::int32_t> starts;
    for (std::int64_t i = 1; i < count; ++i) {
      const std::int64_t even = *least + (*largest - *least) * i / count;
      const std::int64_t beside = starts.empty() ? even : starts.back() + 1;
      const std::int64_t start =
          is_even ? (number(0, 99) > 0 ? even : beside)
                  : one_of({number(*least, *largest), number(*least, *largest), *least + i * 7});
      starts.push_back(static_cast<std::int32_t>(start));
    }
    if (number(0, 3) == 0 && count > 2) starts[0] = INT32_MIN, starts[1] = INT32_MAX;
    std::sort(starts.begin(), starts.end());
    at.integers[0].insert(at.integers[0].end(), starts.begin(), starts.end());
    const std::int64_t turn = number(0, count), sign = one_of({1, -1});
    const std::int64_t far = std::max(turn, count - turn);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t code = std::min(std::abs(i - turn), far);
      at.entries.push_back(static_cast<std::uint8_t>(
          bends ? std::clamp<std::int64_t>(sign > 0 ? code : most - code, 0, most)
                : number(0, most)));
    }
  }
  at.product.epilogue = Piecewise{at.integers[0], at.entries};
}

double curve_of(std::int64_t kind, double x) {
  if (kind == 0) return x / (1 + std::exp(-x));                  // SiLU
  if (kind == 1) return x * std::erfc(-x / std::sqrt(2.0)) / 2;  // GELU
  if (kind == 2) return x * std::clamp(x / 6 + 0.5, 0.0, 1.0);   // HardSwish
  return kind == 3 ? 8 / (1 + std::exp(-x)) : x * x;
}

// Appends the changes of an index between two sums, between which it is taken for monotonic.
template <class Index>
void add_changes(const Index& index, std::int64_t low, std::int64_t high,
                 std::vector<std::pair<std::int32_t, int>>& to) {
  const int after = index(high);
  if (index(low) == after) return;
  if (high - low == 1) return to.emplace_back(static_cast<std::int32_t>(high), after), void();
  const std::int64_t middle = low + (high - low) / 2;
  add_changes(index, low, middle, to), add_changes(index, middle, high, to);
}

// Pieces of a function such as SiLU, whose argument and result are scaled by channel. In some
// layers, the function of a few channels is another one, or indices alternate.
void fill_curves(Layer& at, const std::vector<std::int64_t>& sums) {
  const auto real = [](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_bits);
  };
  const auto ends = std::minmax_element(sums.begin(), sums.end());
  const std::int64_t least = *ends.first, largest = std::max(*ends.second, least + 64);
  const std::int64_t kind = number(0, 4), zero = number(0, at.target.levels / 4);
  const double width = real(6, 60) / static_cast<double>(largest - least), step = real(0.01, 0.2);
  const bool scales = number(0, 1) == 0, is_odd = number(0, 3) == 0;
  std::vector<std::vector<std::pair<std::int32_t, int>>> all;
  for (std::int64_t channel = 0; channel < at.target.channels; ++channel) {
    const double gain = width * real(0.5, 2) * (number(0, 5) == 0 ? -1 : 1);
    const double scale = scales ? std::ldexp(1 / step, -static_cast<int>(number(0, 3))) : 1 / step;
    const double middle = real(0.3, 0.7) * static_cast<double>(largest - least);
    const std::int64_t own = is_odd && number(0, 7) == 0 ? number(0, 4) : kind;
    const auto index = [&](std::int64_t sum) {
      const double x = gain * (static_cast<double>(sum - least) - middle);
      const double y = std::nearbyint(scale * curve_of(own, x)) + static_cast<double>(zero);
      return static_cast<int>(std::clamp(y, 0.0, static_cast<double>(at.target.levels - 1)));
    };
    auto& changes = all.emplace_back();
    changes.emplace_back(INT32_MIN, index(least));
    for (int part = 0; part < 64; ++part)
      add_changes(index, least + (largest - least) * part / 64,
                  least + (largest - least) * (part + 1) / 64, changes);
    if (is_odd && changes.size() > 1)
      changes[1].second = static_cast<int>(number(0, at.target.levels - 1));
    changes.resize(std::min<std::size_t>(changes.size(), 512));
  }
  std::size_t count = 0;
  for (const auto& changes : all) count = std::max(count, changes.size());
  for (auto& changes : all) {
    changes.resize(count, changes.back());
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) at.integers[0].push_back(changes[i].first);
      at.entries.push_back(static_cast<std::uint8_t>(changes[i].second));
    }
  }
  at.product.epilogue = Piecewise{at.integers[0], at.entries};
}

void random_epilogue(Layer& at, const std::vector<std::int64_t>& sums) {
  const auto channels = static_cast<std::size_t>(at.target.channels);
  const auto some_sum = [&] {
    return static_cast<std::int32_t>(
        sums[static_cast<std::size_t>(number(0, static_cast<std::int64_t>(sums.size()) - 1))]);
  };
  const auto kind = number(0, 7);
  at.target.levels = one_of<std::int64_t>({2, 2, 3, 4, 4, 7, 16, 17, 18, 100, 256});
  if (kind == 4) return fill_quantizer(at, sums);
  if (kind == 5) return fill_scaled(at, sums);
  if (kind == 6) return fill_pieces(at, sums);
  if (kind == 7) return fill_curves(at, sums);
  if (kind == 0) {
    // An ordinary quantizer has equally spaced thresholds; after a bent function they are curved.
    const bool even = number(0, 1) == 0, curved = number(0, 1) == 0;
    const auto [least, most] = std::minmax_element(sums.begin(), sums.end());
    const auto spread = static_cast<double>(*most - *least);
    for (std::size_t c = 0; c < channels; ++c) {
      std::vector<std::int32_t> own;
      const std::int32_t direction = one_of({1, -1}), some = some_sum() / 2;
      for (std::int64_t i = 1; i < at.target.levels; ++i)
        own.push_back(one_of({direction * some_sum(), some_sum() + 1, INT32_MAX, INT32_MIN,
                              direction * some_sum(), direction * some_sum()}));
      if (even) {
        const double slope = static_cast<double>(at.target.levels) / (spread + 1);
        const auto curve = [&](std::int64_t i) {
          const auto x = static_cast<double>(i);
          return curved ? x + 0.4 * x * x / static_cast<double>(at.target.levels) : x;
        };
        for (std::int64_t i = 1; i < at.target.levels; ++i)
          own[static_cast<std::size_t>(i - 1)] = static_cast<std::int32_t>(
              std::ceil((curve(i) - 0.5) / slope + static_cast<double>(some)));
        // Codes that no sum reaches, or that every sum does.
        if (number(0, 3) == 0) own.front() = INT32_MIN;
        if (number(0, 3) == 0) own.back() = INT32_MAX;
      }
      std::sort(own.begin(), own.end());
      at.integers[0].push_back(direction);
      at.integers[1].insert(at.integers[1].end(), own.begin(), own.end());
    }
    at.product.epilogue = Thresholds{at.integers[0], at.integers[1]};
  } else if (kind == 1) {
    for (std::size_t c = 0; c < channels; ++c) {
      at.floats[0].push_back(one_of({0.5f, -0.25f, 0.0113f, 0.0f, 3e38f, -1e-30f}));
      at.floats[1].push_back(one_of({0.5f, 0.0f, -7.3f, 12.0f, -3e38f}));
    }
    at.product.epilogue =
        Affine{at.floats[0], at.floats[1], one_of<std::int64_t>({0, 0, 1, 127, -3})};
  } else if (kind == 2) {
    const std::int64_t lowest = *std::min_element(sums.begin(), sums.end());
    const std::int64_t length = *std::max_element(sums.begin(), sums.end()) - lowest + 1;
    if (length * at.target.channels < 1 << 22) {
      at.integers[0].assign(channels, static_cast<std::int32_t>(lowest));
      for (std::int64_t i = 0; i < length * at.target.channels; ++i)
        at.entries.push_back(static_cast<std::uint8_t>(number(0, at.target.levels - 1)));
      at.product.epilogue = Table{at.integers[0], at.entries};
      return;
    }
  }
  if (kind >= 2) {
    for (std::size_t c = 0; c < channels; ++c)
      at.floats[0].push_back(one_of({0.1f, 1.0f, -2.5f})), at.floats[1].push_back(0.3f * c);
    at.floats[2] = {1.5f};
    Arithmetic epilogue{at.floats[0], {}};
    for (std::int64_t i = number(0, 7); i > 0; --i)
      epilogue.steps.push_back(
          {number(0, 9), number(0, 1) == 0 ? Floats(at.floats[1]) : Floats(at.floats[2])});
    if (kind == 2 || number(0, 1) == 0) at.product.epilogue = epilogue;
    else at.product.epilogue = Rounded{epilogue.scales, epilogue.steps, number(-3, 200)};
  }
}

// A reduction axis that kernels compute in parts.
void make_long(Layer& at) {
  Window& w = at.product.window;
  w.kernel_height = number(1, 2), w.kernel_width = number(1, 2);
  w.stride_height = w.stride_width = 1;
  at.rows = number(1, 3);
  at.source.height = number(3, 5), at.source.width = 5;
  at.product.groups = 1, at.source.channels = one_of<std::int64_t>({520, 601, 1030, 1100});
  at.target.channels = one_of<std::int64_t>({1, 17, 48, 70});
}

// A convolution of bytes over squares of 4x4 outputs and parts of them, at the limits of its
// kernel: large weights and codes, few and many channels.
void make_squares(Layer& at) {
  at.product.window = {3, 3, 1, 1, 1, 1, number(0, 2), number(0, 2), number(0, 2), number(0, 2)};
  at.rows = number(1, 3);
  at.source.height = number(3, 13), at.source.width = number(3, one_of({6, 19, 40}));
  if (at.product.window.pad_top > 0 && at.product.window.pad_bottom > 0)
    at.source.height = one_of<std::int64_t>({1, 2, at.source.height});
  if (at.product.window.pad_left > 0 && at.product.window.pad_right > 0)
    at.source.width = one_of<std::int64_t>({1, 2, at.source.width});
  at.source.channels = one_of<std::int64_t>({1, 3, 16, 31, 32, 33, 64, 65, 114, 115, 130});
  at.target.channels = one_of<std::int64_t>({1, 15, 16, 17, 63, 64, 65, 130});
  at.source.levels = one_of<std::int64_t>({128, 200, 256}), at.source.step = 1;
  at.source.lowest = one_of<std::int64_t>({0, -128, 3});
  at.product.groups = 1, at.product.weight_bits = one_of<std::int64_t>({1, 8});
  const std::int64_t most = std::int64_t{1} << at.product.weight_bits;
  const std::int32_t end = one_of({-128, 127});
  for (std::int64_t i = 0; i < most; ++i)
    at.values.push_back(most == 2 ? (number(0, 3) == 0 ? -1 - end : end)
                                  : static_cast<std::int32_t>(i) - 128);
  at.largest_codes = most == 2 && number(0, 1) == 0;
  at.draws = most == 2 ? 1 : one_of<std::int64_t>({1, 4});
  at.fit_target();
  at.fill_weights();
}

void random_layer(Layer& at) {
  if (number(0, 7) == 0) return make_squares(at);
  Window& w = at.product.window;
  at.rows = number(0, 9) == 0 ? 0 : number(1, 4);
  const bool dense = number(0, 3) == 0;
  w.kernel_height = dense ? 1 : number(1, 3), w.kernel_width = dense ? 1 : number(1, 4);
  w.stride_height = number(1, 2), w.stride_width = number(1, 3);
  w.dilation_height = number(1, 2), w.dilation_width = one_of<std::int64_t>({1, 1, 2});
  if (!dense && number(0, 1) == 0)
    w.pad_top = number(0, 3), w.pad_left = number(0, 3), w.pad_bottom = number(0, 3),
    w.pad_right = number(0, 3);
  at.source.height = dense ? 1 : number(7, 12), at.source.width = dense ? 1 : number(9, 14);
  at.product.groups = one_of<std::int64_t>({1, 1, 1, 1, 2, 3});
  at.source.channels =
      at.product.groups * one_of<std::int64_t>({1, 2, 3, 4, 16, 31, 32, 33, 64, 96});
  at.target.channels = at.product.groups * one_of<std::int64_t>({1, 2, 15, 16, 17, 32, 48, 70});
  if (number(0, 7) == 0) {
    at.source.channels = at.product.groups = at.target.channels =
        one_of<std::int64_t>({2, 16, 37, 64, 81});
  }
  if (dense) at.source.channels *= at.product.groups == 1 ? one_of<std::int64_t>({1, 9}) : 1;
  if (number(0, 15) == 0) make_long(at);
  random_codes(at.source);
  random_weights(at);
  at.fit_target();
  at.draws = one_of<std::int64_t>({1, 2, 4, 7});
  at.fill_weights();
}

// A dense layer whose rows reach every accumulator of a range that ends close to the limits of 16
// bits, or beyond.
void edge_layer(Layer& at, std::vector<std::uint8_t>& indices) {
  const std::int64_t most = 127;  // largest index and weight
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(one_of({1, 2, 2, 4})), most);
  sizes.push_back(one_of<std::int64_t>({2, 3, 4, 7, 8}));
  sizes.push_back(1);
  const auto inputs = static_cast<std::int64_t>(sizes.size());
  at.target = {1, 1, one_of<std::int64_t>({16, 32, 47, 64, 80}), 0, 1, 0};
  // Numbers of one pixel, or those of a channel in a line of pixels.
  const bool depthwise = number(0, 1) == 0;
  const std::int64_t width = depthwise ? inputs : 1;
  const std::int64_t copies = depthwise ? at.target.channels : 1;
  const auto lowest = one_of<std::int64_t>({0, 0, 1, -64, -127});
  at.source = {1, width, inputs / width * copies, lowest, 1, most + 1};
  at.product.window = {1, width, 1, 1, 1, 1, 0, 0, 0, 0};
  at.product.groups = copies, at.product.weight_bits = 8;
  for (std::int64_t value = -128; value < 128; ++value)
    at.values.push_back(static_cast<std::int32_t>(value));
  for (std::int64_t channel = 0; channel < at.target.channels; ++channel) {
    const bool negative = number(0, 2) == 0;
    for (const std::int64_t size : sizes)
      at.weights.push_back(static_cast<std::int8_t>(negative ? -size : size));
  }
  for (const std::int8_t weight : at.weights)
    at.bits.push_back(static_cast<std::uint8_t>(weight + 128));
  at.product.weights = at.bits, at.product.values = at.values;
  std::int64_t total = 0;
  for (const std::int64_t size : sizes) total += size * most;
  at.rows = total + 1;
  for (std::int64_t row = 0; row < at.rows; ++row) {
    std::int64_t rest = row;
    for (const std::int64_t size : sizes) {
      const std::int64_t index = std::min(most, rest / size);
      indices.insert(indices.end(), static_cast<std::size_t>(copies),
                     static_cast<std::uint8_t>(index));
      rest -= index * size;
    }
  }
}

// Epilogues close to a line, with steps between the least and the largest sum.
void edge_epilogue(Layer& at, const std::vector<std::int64_t>& sums) {
  const auto [least, largest] = std::minmax_element(sums.begin(), sums.end());
  const auto spread = static_cast<double>(*largest - *least + 1);
  at.target.levels = one_of<std::int64_t>({2, 3, 4, 7, 15, 16, 16, 17, 18, 100, 256});
  const bool is_affine = number(0, 1) == 0;
  const std::int64_t shift = one_of<std::int64_t>({0, 0, 8, at.target.levels / 2});
  for (std::int64_t c = 0; c < at.target.channels; ++c) {
    const double slope = static_cast<double>(at.target.levels) / spread *
                         std::exp2(static_cast<double>(number(-20, 40)) / 10);
    const auto middle = static_cast<double>(
        sums[static_cast<std::size_t>(number(0, std::int64_t(sums.size()) - 1))]);
    const std::int32_t direction = number(0, 2) == 0 ? -1 : 1;
    const double offset = static_cast<double>(number(0, at.target.levels - 1)) - slope * middle;
    if (is_affine) {
      at.floats[0].push_back(static_cast<float>(direction * slope));
      at.floats[1].push_back(
          static_cast<float>(direction < 0 ? offset + 2 * slope * middle : offset) -
          static_cast<float>(shift));
      continue;
    }
    std::vector<std::int32_t> own;
    const bool is_bent = number(0, 7) == 0;
    for (std::int64_t i = 1; i < at.target.levels; ++i)
      own.push_back(
          static_cast<std::int32_t>(direction * (is_bent ? number(0, 9) : 0) +
                                    std::ceil((static_cast<double>(i) - 0.5 - offset) / slope) +
                                    (direction < 0 ? -2 * middle : 0)));
    std::sort(own.begin(), own.end());
    at.integers[0].push_back(direction);
    at.integers[1].insert(at.integers[1].end(), own.begin(), own.end());
  }
  if (is_affine) at.product.epilogue = Affine{at.floats[0], at.floats[1], shift};
  else at.product.epilogue = Thresholds{at.integers[0], at.integers[1]};
}

float after(Operation operation, float y, float c, float& kept) {
  switch (operation) {
    case Operation::add:
      return y + c;
    case Operation::subtract:
      return y - c;
    case Operation::subtract_from:
      return c - y;
    case Operation::multiply:
      return y * c;
    case Operation::divide:
      return y / c;
    case Operation::maximum:
      return y > c || std::isnan(y) ? y : c;
    case Operation::minimum:
      return y < c || std::isnan(y) ? y : c;
    case Operation::keep:
      return kept = y;
    case Operation::add_kept:
      return y + kept;
    case Operation::multiply_kept:
      return y * kept;
    case Operation::sigmoid:
    case Operation::gelu:
      break;  // in no layer of this program
  }
  return 0;
}

float after(const auto& epilogue, std::int64_t sum, std::size_t channel) {
  float y = static_cast<float>(sum) * epilogue.scales[channel], kept = 0;
  for (const Step& step : epilogue.steps)
    y = after(step.kind(), y, step.operands[step.operands.size() == 1 ? 0 : channel], kept);
  return y;
}

int index_of(const Layer& at, std::int64_t sum, std::size_t channel) {
  if (const auto* t = std::get_if<Thresholds>(&at.product.epilogue)) {
    int count = 0;
    const auto levels = static_cast<std::size_t>(at.target.levels - 1);
    for (std::size_t i = 0; i < levels; ++i)
      count += sum * t->directions[channel] >= t->thresholds[channel * levels + i];
    return count;
  }
  if (const auto* s = std::get_if<Scaled>(&at.product.epilogue)) {
    const std::int64_t multiplier = s->multipliers[channel],
                       y = sum * multiplier + s->term(channel);
    const int shift = s->right_shifts[channel];
    std::int64_t index = y >> shift;
    const bool is_first = y - index * (std::int64_t{1} << shift) < std::abs(multiplier);
    if (is_first && index > 0 && index < at.target.levels)
      index -= s->is_late(channel * static_cast<std::size_t>(at.target.levels) +
                          static_cast<std::size_t>(index));
    return static_cast<int>(std::clamp<std::int64_t>(index, 0, at.target.levels - 1));
  }
  if (const auto* a = std::get_if<Affine>(&at.product.epilogue)) {
    float y = static_cast<float>(sum) * a->gains[channel];
    y = y + a->offsets[channel];
    return static_cast<int>(std::clamp(std::nearbyint(y) + static_cast<float>(a->shift), 0.0f,
                                       static_cast<float>(at.target.levels - 1)));
  }
  if (const auto* r = std::get_if<Rounded>(&at.product.epilogue)) {
    const auto bottom = static_cast<float>(-r->shift);
    const float y = after(*r, sum, channel);
    const float top = bottom + static_cast<float>(at.target.levels - 1);
    const float inside = y > bottom ? std::min(y, top) : bottom;
    return static_cast<int>(std::nearbyint(inside)) + static_cast<int>(r->shift);
  }
  if (const auto* pieces = std::get_if<Piecewise>(&at.product.epilogue)) {
    const auto channels = static_cast<std::size_t>(at.target.channels);
    const std::size_t starts = pieces->starts.size() / channels;
    std::size_t piece = channel * (starts + 1);
    for (std::size_t i = 0; i < starts; ++i) piece += sum >= pieces->starts[channel * starts + i];
    return pieces->entries[piece];
  }
  const auto& table = std::get<Table>(at.product.epilogue);
  const std::size_t length = table.entries.size() / table.first.size();
  return table.entries[channel * length + static_cast<std::size_t>(sum - table.first[channel])];
}

}  // namespace
