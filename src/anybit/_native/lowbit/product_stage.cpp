// SPDX-License-Identifier: Apache-2.0
// Sums of codes and weights, and what becomes of them.
#include <algorithm>

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

  ProductStage(const ProductTask& task, const Place& from, const PortPlace& to, Level level)
      : port_(to), product_(task, from.storage, to.strides, level) {
    describe(task, from);
  }

  void run(const Memory& memory, const Part& part) const override {
    const std::byte* const from = source->row(memory, 0);
    if (target != nullptr) {
      start_rows(*target, memory, part);
      return product_.run(from, target->row(memory, 0), part);
    }
    float* const output = memory.outputs[port_.index];
    product_.run(from, output + memory.first_row * port_.strides.row, part);
  }

  std::string kernel() const override { return std::string(product_.kernel()); }
  std::int64_t bytes() const override { return product_.bytes(); }

 private:
  void describe(const ProductTask& task, const Place& from) {
    name = Product::name;
    source = &from;
    lines = task.target.height;
    channels = task.target.channels;
    by_channels = true;
    elements = task.target.elements();
    channels_of_sum = task.source.channels / task.product->groups;
    multiplications = product_.multiplications();
  }

  const PortPlace port_{};
  const PackedProduct product_;
};

}  // namespace

std::unique_ptr<Stage> make_stage(const ProductTask& task, const Place& source, const Place& target,
                                  Level level) {
  return std::make_unique<ProductStage>(task, source, target, level);
}

std::unique_ptr<Stage> make_stage(const ProductTask& task, const Place& source,
                                  const PortPlace& target, Level level) {
  return std::make_unique<ProductStage>(task, source, target, level);
}

std::int64_t Stage::nanoseconds() const {
  // What a core of some 3 GHz does; it decides on threads only.
  const bool few_bits = source != nullptr && source->storage.coding != Coding::bytes;
  const std::int64_t at_once = std::min<std::int64_t>(few_bits ? 400 : 120, channels_of_sum * 4);
  return 20 + elements / 2 + multiplications / at_once;
}

}  // namespace anybit::lowbit
