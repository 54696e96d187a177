// SPDX-License-Identifier: Apache-2.0
// Stage of a Product without the zeros that a Gather inserts into its source.
#include <algorithm>
#include <deque>
#include <utility>

#include "product_kernels.hpp"
#include "tensor_stage.hpp"

namespace anybit::lowbit {

namespace {

// One stage runs all phases, some lines at a time: these stay in the caches.
class SpreadStage final : public Stage {
 public:
  SpreadStage(const ProductTask& task, const SpreadProduct& spread, const Place& from,
              const Place& to, Level level)
      : step_(spread.line_step) {
    for (const Phase& phase : spread.phases) {
      Storage storage = to.storage;
      storage.border = {};
      storage.height = phase.height, storage.width = phase.width;
      storage.line *= spread.line_step, storage.pixel *= spread.column_step;
      add(task, phase, to.storage.offset(phase.line, phase.column),
          [&](const ProductTask& one) { return PackedProduct(one, from.storage, storage, level); });
    }
    describe(task, from, to.storage.line);
    target = &to;
  }

  SpreadStage(const ProductTask& task, const SpreadProduct& spread, const Place& from,
              const FloatPlace& to, std::vector<FloatPlace> arrays, Level level)
      : step_(spread.line_step), port_(to), arrays_(std::move(arrays)) {
    const std::int64_t width = task.target.width;
    ProductTask placed = task;
    if (!to.channels_last())
      for (std::int64_t channel = 0; channel < task.target.channels; ++channel)
        placed.channel_runs.starts.push_back(channel * to.strides.channel);
    for (const Phase& phase : spread.phases) {
      placed.places = {phase.line * width + phase.column, spread.line_step * width,
                       spread.column_step};
      add(placed, phase, 0, [&](const ProductTask& one) {
        return PackedProduct(one, from.storage, to.strides, level);
      });
    }
    describe(task, from, width * task.target.channels * static_cast<std::int64_t>(sizeof(float)));
  }

  void run(const Memory& memory, const Part& part) const override {
    if (target != nullptr) start_rows(*target, memory, part);
    for (std::int64_t line = part.first_line; line < part.last_line; line += lines_together_) {
      const std::int64_t last = std::min(line + lines_together_, part.last_line);
      for (const PhaseProduct& phase : phases_) {
        Part some = part;
        some.first_line = lines_before(phase, line), some.last_line = lines_before(phase, last);
        run_phase(phase, memory, some);
      }
    }
  }

  std::string kernel() const override { return std::string(phases_.front().product.kernel()); }
  std::int64_t bytes() const override {
    std::int64_t all = 0;
    for (const PhaseProduct& phase : phases_) all += phase.product.bytes();
    return all;
  }

 private:
  struct PhaseProduct {
    PackedProduct product;
    std::int64_t line = 0;    // first line
    std::int64_t offset = 0;  // of its first pixel in a row of a target of codes
  };

  template <class Pack>
  void add(ProductTask task, const Phase& phase, std::int64_t offset, Pack&& pack) {
    const Product product = product_of(phase, *task.product);
    task.product = &product;
    task.target.height = phase.height, task.target.width = phase.width;
    task.most_bytes -= bytes_;
    phases_.push_back({pack(task), phase.line, offset});
    bytes_ += phases_.back().product.bytes();
    multiplications += phases_.back().product.multiplications();
  }

  void describe(const ProductTask& task, const Place& from, std::int64_t line_bytes) {
    constexpr std::int64_t near_bytes = 128 * 1024;
    name = Product::name;
    source = &from;
    lines = task.target.height;
    channels = task.target.channels;
    by_channels = true;
    elements = task.target.elements();
    channels_of_sum = task.source.channels / task.product->groups;
    for (const PhaseProduct& phase : phases_)
      line_grain = std::max(line_grain, phase.product.line_grain() * step_);
    lines_together_ =
        std::max<std::int64_t>(near_bytes / (line_bytes * line_grain), 1) * line_grain;
  }

  // Number of lines of a phase before a line of the target.
  std::int64_t lines_before(const PhaseProduct& phase, std::int64_t line) const {
    return line <= phase.line ? 0 : (line - phase.line + step_ - 1) / step_;
  }

  void run_phase(const PhaseProduct& phase, const Memory& memory, const Part& part) const {
    const std::byte* const from = source->row(memory, 0);
    if (target != nullptr)
      return phase.product.run(from, target->row(memory, 0) + phase.offset, part);
    const float* arrays[most_step_arrays];
    for (std::size_t i = 0; i < arrays_.size(); ++i) arrays[i] = arrays_[i].read(memory, 0);
    phase.product.run(from, port_.write(memory, 0), part, arrays);
  }

  const std::int64_t step_;
  const FloatPlace port_{};
  const std::vector<FloatPlace> arrays_;
  std::vector<PhaseProduct> phases_;
  std::int64_t lines_together_ = 1, bytes_ = 0;
};

// All phases as one product, whose channels are those of several outputs.
class JoinedPhases {
 public:
  JoinedPhases(const ProductTask& task, const SpreadProduct& spread, const FloatPlace& to)
      : task_(task), spread_(spread) {
    order_channels(to);
    const std::size_t size =
        spread.phases.front().weights.size() / static_cast<std::size_t>(task.target.channels);
    for (const Channel& channel : channels_) {
      const auto& weights = spread.phases[channel.phase].weights;
      const auto first = weights.begin() + static_cast<std::ptrdiff_t>(channel.channel * size);
      weights_.insert(weights_.end(), first, first + static_cast<std::ptrdiff_t>(size));
    }
    product_ = product_of(spread.phases.front(), *task.product);
    product_.weights = weights_;
    repeat_constants();
    const Phase& phase = spread.phases.front();
    task_.product = &product_;
    task_.target.height = phase.height, task_.target.width = phase.width;
    task_.target.channels = static_cast<std::int64_t>(channels_.size());
    task_.places = {0, spread.line_step * task.target.width, spread.column_step};
  }

  const ProductTask& task() const { return task_; }

 private:
  struct Channel {
    std::size_t phase = 0, channel = 0;
  };

  // Channels that are adjacent in the target follow one another.
  void order_channels(const FloatPlace& to) {
    const auto channels = static_cast<std::size_t>(task_.target.channels),
               columns = static_cast<std::size_t>(spread_.column_step);
    const std::int64_t line = task_.target.width * to.strides.pixel;
    for (std::size_t i = 0; i < static_cast<std::size_t>(spread_.line_step); ++i)
      if (to.channels_last()) {
        task_.channel_runs.starts.push_back(static_cast<std::int64_t>(i) * line);
        for (std::size_t j = 0; j < columns; ++j)
          for (std::size_t c = 0; c < channels; ++c) channels_.push_back({i * columns + j, c});
      } else {
        for (std::size_t c = 0; c < channels; ++c) {
          task_.channel_runs.starts.push_back(static_cast<std::int64_t>(i) * line +
                                              static_cast<std::int64_t>(c) * to.strides.channel);
          for (std::size_t j = 0; j < columns; ++j) channels_.push_back({i * columns + j, c});
        }
      }
    task_.channel_runs.length =
        static_cast<std::int64_t>(to.channels_last() ? columns * channels : columns);
  }

  Floats repeated(Floats values) {
    if (values.size() == 1) return values;
    std::vector<float>& all = constants_.emplace_back();
    for (const Channel& channel : channels_) all.push_back(values[channel.channel]);
    return all;
  }

  void repeat_constants() {
    auto& epilogue = std::get<Arithmetic>(product_.epilogue);
    epilogue.scales = repeated(epilogue.scales);
    for (Step& step : epilogue.steps) step.operands = repeated(step.operands);
    for (FloatStep& step : task_.more) step.constants = repeated(step.constants);
  }

  ProductTask task_;
  const SpreadProduct& spread_;
  std::vector<Channel> channels_;
  std::vector<std::uint8_t> weights_;
  std::deque<std::vector<float>> constants_;
  Product product_;
};

}  // namespace

std::unique_ptr<Stage> make_stage(const ProductTask& task, const SpreadProduct& spread,
                                  const Place& source, const Place& target, Level level) {
  return std::make_unique<SpreadStage>(task, spread, source, target, level);
}

std::unique_ptr<Stage> make_stage(const ProductTask& task, const SpreadProduct& spread,
                                  const Place& source, const FloatPlace& target,
                                  std::vector<FloatPlace> arrays, Level level) {
  const bool is_joined = arrays.empty() && task.product->groups == 1 && spread.has_one_window() &&
                         source.storage.coding == Coding::bytes;
  if (is_joined)
    return make_stage(JoinedPhases(task, spread, target).task(), source, target, {}, level);
  return std::make_unique<SpreadStage>(task, spread, source, target, std::move(arrays), level);
}

}  // namespace anybit::lowbit
