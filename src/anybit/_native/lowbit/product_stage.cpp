// SPDX-License-Identifier: Apache-2.0
// Stage of a Product instruction.
#include <algorithm>
#include <utility>

#include "product_kernels.hpp"
#include "tensor_stage.hpp"

namespace anybit::lowbit {

namespace {

class ProductStage final : public Stage {
 public:
  ProductStage(const ProductTask& task, const Place& from, const Place& to, Level level)
      : product_(task, from.storage, to.storage, level) {
    describe(task, from);
    target = &to;
  }

  ProductStage(const ProductTask& task, const Place& from, const FloatPlace& to,
               std::vector<FloatPlace> arrays, Level level)
      : port_(to), arrays_(std::move(arrays)), product_(task, from.storage, to.strides, level) {
    describe(task, from);
  }

  void run(const Memory& memory, const Part& part) const override {
    if (target != nullptr) start_rows(*target, memory, part);
    const std::int64_t pixels =
        (part.last_row - part.first_row) * (part.last_line - part.first_line) * width_;
    if (!memory.backwards || !many_weights_ || pixels > few_pixels) return run_some(memory, part);
    for (Part some = part; some.last_channel > part.first_channel;
         some.last_channel = some.first_channel) {
      some.first_channel =
          std::max(part.first_channel, (some.last_channel - 1) / turn_channels * turn_channels);
      run_some(memory, some);
    }
  }

  std::string kernel() const override { return std::string(product_.kernel()); }
  std::int64_t bytes() const override { return product_.bytes(); }

 private:
  // Few pixels read weights that exceed the caches only once. Every other call reads them in
  // reverse order: the last ones of the previous call are still cached.
  static constexpr std::int64_t turn_bytes = 512 * 1024, turn_channels = 4 * channel_grain;
  static constexpr std::int64_t few_pixels = 32;

  void run_some(const Memory& memory, const Part& part) const {
    const std::byte* const from = source->row(memory, 0);
    if (target != nullptr) return product_.run(from, target->row(memory, 0), part);
    const float* arrays[most_step_arrays];
    for (std::size_t i = 0; i < arrays_.size(); ++i) arrays[i] = arrays_[i].read(memory, 0);
    product_.run(from, port_.write(memory, 0), part, arrays);
  }

  void describe(const ProductTask& task, const Place& from) {
    name = Product::name;
    source = &from;
    lines = task.target.height;
    channels = task.target.channels;
    by_channels = true;
    elements = task.target.elements();
    channels_of_sum = task.source.channels / task.product->groups;
    multiplications = product_.multiplications();
    width_ = task.target.width;
    many_weights_ = product_.bytes() > turn_bytes;
    line_grain = product_.line_grain();
  }

  const FloatPlace port_{};
  const std::vector<FloatPlace> arrays_;
  const PackedProduct product_;
  std::int64_t width_ = 1;
  bool many_weights_ = false;
};

class EmptyStage final : public Stage {
 public:
  explicit EmptyStage(std::string_view instruction) { name = instruction; }
  std::string kernel() const override { return "with the product"; }
  void run(const Memory&, const Part&) const override {}
};

}  // namespace

std::unique_ptr<Stage> make_empty_stage(std::string_view instruction) {
  return std::make_unique<EmptyStage>(instruction);
}

std::unique_ptr<Stage> make_stage(const ProductTask& task, const Place& source, const Place& target,
                                  Level level) {
  return std::make_unique<ProductStage>(task, source, target, level);
}

std::unique_ptr<Stage> make_stage(const ProductTask& task, const Place& source,
                                  const FloatPlace& target, std::vector<FloatPlace> arrays,
                                  Level level) {
  return std::make_unique<ProductStage>(task, source, target, std::move(arrays), level);
}

std::int64_t Stage::nanoseconds() const {
  // Estimate for a core at 3 GHz; it only affects the number of threads.
  const bool few_bits = source != nullptr && source->storage.coding != Coding::bytes;
  const std::int64_t at_once = std::min<std::int64_t>(few_bits ? 400 : 120, channels_of_sum * 4);
  return 20 + elements / 2 + multiplications / at_once;
}

}  // namespace anybit::lowbit
