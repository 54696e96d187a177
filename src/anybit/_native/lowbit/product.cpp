// SPDX-License-Identifier: Apache-2.0
#include "product.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace anybit::lowbit {

namespace {

// Weight after weight in the order of the record.
std::vector<std::int8_t> unpacked(const Product& product, std::int64_t count) {
  std::vector<std::int8_t> weights(static_cast<std::size_t>(count));
  std::size_t place = 0;
  for (std::int8_t& weight : weights) {
    std::size_t index = 0;
    for (std::int64_t bit = 0; bit < product.weight_bits; ++bit, ++place)
      index |= static_cast<std::size_t>(product.weights[place / 8] >> place % 8 & 1) << bit;
    weight = static_cast<std::int8_t>(product.values[index]);
  }
  return weights;
}

template <class T>
std::vector<T> copy(std::span<const T> values) {
  return {values.begin(), values.end()};
}

struct OwnedStep {
  Operation operation;
  std::vector<float> operands;
};

float applied(Operation operation, float y, float c) {
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
  }
  return y;
}

}  // namespace

struct PackedProduct::State {
  Tensor source, target;
  Window window;
  std::int64_t groups = 1;
  Storage from, to;
  FloatStrides floats;
  std::vector<std::int8_t> weights;
  Tail tail;
  std::vector<std::int32_t> integers[2];
  std::vector<float> reals[2];
  std::vector<std::uint8_t> entries;
  std::vector<OwnedStep> steps;

  State(const ProductTask& task, const Storage& from_, const Storage& to_, FloatStrides floats_)
      : source(task.source),
        target(task.target),
        window(task.product->window),
        groups(task.product->groups),
        from(from_),
        to(to_),
        floats(floats_),
        weights(unpacked(*task.product, target.channels * window.kernel_height *
                                            window.kernel_width * source.channels / groups)),
        tail(task.product->tail) {
    if (auto* thresholds = std::get_if<Thresholds>(&tail)) {
      integers[0] = copy(thresholds->directions), integers[1] = copy(thresholds->thresholds);
      *thresholds = {integers[0], integers[1]};
    } else if (auto* affine = std::get_if<Affine>(&tail)) {
      reals[0] = copy(affine->gains), reals[1] = copy(affine->offsets);
      *affine = {reals[0], reals[1]};
    } else if (auto* table = std::get_if<Table>(&tail)) {
      integers[0] = copy(table->first), entries = copy(table->entries);
      *table = {integers[0], entries};
    } else {
      auto& arithmetic = std::get<Arithmetic>(tail);
      reals[0] = copy(arithmetic.scales);
      for (const Step& step : arithmetic.steps)
        steps.push_back({step.kind(), copy(step.operands)});
      arithmetic = {reals[0], {}};
    }
  }

  std::int32_t sum(const std::byte* row, std::int64_t y, std::int64_t x,
                   std::int64_t channel) const {
    const std::int64_t inner = source.channels / groups;
    const std::int64_t first = channel / (target.channels / groups) * inner;
    const std::int8_t* weight =
        &weights[static_cast<std::size_t>(channel * window.kernel_height * window.kernel_width * inner)];
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < window.kernel_height; ++i)
      for (std::int64_t j = 0; j < window.kernel_width; ++j, weight += inner) {
        const std::int64_t v = y * window.stride_height + i * window.dilation_height - window.pad_top;
        const std::int64_t u = x * window.stride_width + j * window.dilation_width - window.pad_left;
        if (v < 0 || v >= source.height || u < 0 || u >= source.width) continue;
        const std::byte* const pixel = row + from.offset(v, u);
        for (std::int64_t c = 0; c < inner; ++c)
          sum += (source.lowest + source.step * take(from.coding, pixel, first + c)) * weight[c];
      }
    return static_cast<std::int32_t>(sum);
  }

  std::uint8_t index(std::int32_t sum, std::int64_t channel_) const {
    const auto channel = static_cast<std::size_t>(channel_);
    if (const auto* thresholds = std::get_if<Thresholds>(&tail)) {
      const auto each = static_cast<std::size_t>(target.levels - 1);
      int reached = 0;
      for (std::size_t i = 0; i < each; ++i)
        reached += sum * thresholds->directions[channel] >= thresholds->thresholds[channel * each + i];
      return static_cast<std::uint8_t>(reached);
    }
    if (const auto* affine = std::get_if<Affine>(&tail)) {
      const float y =
          std::nearbyint(static_cast<float>(sum) * affine->gains[channel] + affine->offsets[channel]);
      return static_cast<std::uint8_t>(
          std::clamp(y, 0.0f, static_cast<float>(target.levels - 1)));
    }
    const auto& table = std::get<Table>(tail);
    const std::size_t each = table.entries.size() / table.first.size();
    return table.entries[channel * each + static_cast<std::size_t>(sum - table.first[channel])];
  }

  float real(std::int32_t sum, std::int64_t channel) const {
    float y = static_cast<float>(sum) * reals[0][static_cast<std::size_t>(channel)];
    for (const OwnedStep& step : steps)
      y = applied(step.operation, y,
                  step.operands[step.operands.size() == 1 ? 0 : static_cast<std::size_t>(channel)]);
    return y;
  }
};

Coding PackedProduct::wanted(const ProductTask& task, Level /*level*/) {
  const std::int64_t inner = task.source.channels / task.product->groups;
  if (task.product->groups > 1 && inner % 32 != 0) return Coding::bytes;
  if (inner < 16 || task.product->weight_bits > 2) return Coding::bytes;
  return task.source.levels <= 2   ? Coding::bits
         : task.source.levels <= 4 ? Coding::planes
                                   : Coding::bytes;
}

PackedProduct::PackedProduct(const ProductTask& task, const Storage& source, const Storage& target,
                             Level /*level*/)
    : state_(std::make_unique<State>(task, source, target, FloatStrides{})) {}

PackedProduct::PackedProduct(const ProductTask& task, const Storage& source, FloatStrides target,
                             Level /*level*/)
    : state_(std::make_unique<State>(task, source, Storage{}, target)) {}

PackedProduct::~PackedProduct() = default;
PackedProduct::PackedProduct(PackedProduct&&) noexcept = default;

namespace {

template <class Element>
void each_pixel(const Part& part, std::int64_t width, Element&& element) {
  for (std::int64_t row = part.first_row; row < part.last_row; ++row)
    for (std::int64_t y = part.first_line; y < part.last_line; ++y)
      for (std::int64_t x = 0; x < width; ++x) element(row, y, x);
}

}  // namespace

void PackedProduct::run(const std::byte* source, std::byte* target, const Part& part) const {
  const State& at = *state_;
  std::vector<std::uint8_t> indices(
      static_cast<std::size_t>(part.last_channel - part.first_channel));
  each_pixel(part, at.target.width, [&](std::int64_t row, std::int64_t y, std::int64_t x) {
    for (std::int64_t c = part.first_channel; c < part.last_channel; ++c)
      indices[static_cast<std::size_t>(c - part.first_channel)] =
          at.index(at.sum(source + row * at.from.row, y, x, c), c);
    put_run(at.to.coding, target + row * at.to.row + at.to.offset(y, x), part.first_channel,
            indices.data(), static_cast<std::int64_t>(indices.size()));
  });
}

void PackedProduct::run(const std::byte* source, float* target, const Part& part) const {
  const State& at = *state_;
  each_pixel(part, at.target.width, [&](std::int64_t row, std::int64_t y, std::int64_t x) {
    for (std::int64_t c = part.first_channel; c < part.last_channel; ++c)
      target[row * at.floats.row + (y * at.target.width + x) * at.floats.pixel +
             c * at.floats.channel] = at.real(at.sum(source + row * at.from.row, y, x, c), c);
  });
}

std::string_view PackedProduct::kernel() const { return "plain"; }

std::int64_t PackedProduct::bytes() const {
  return static_cast<std::int64_t>(state_->weights.size());
}

std::int64_t PackedProduct::multiplications() const {
  const auto weights = static_cast<std::int64_t>(state_->weights.size());
  return weights * state_->target.height * state_->target.width;
}

}  // namespace anybit::lowbit
