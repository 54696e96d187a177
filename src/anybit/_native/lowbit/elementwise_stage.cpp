// SPDX-License-Identifier: Apache-2.0
// Stage of an Elementwise instruction: float32 to float32.
#include <algorithm>
#include <vector>

#include "stage.hpp"
#include "transposed_floats.hpp"

namespace anybit::lowbit {

namespace {

// Floats of a block; several blocks fit the L1 cache.
constexpr std::int64_t usual_floats = 1024;
// Most floats of a block where the channels of the target come first: then it has as many pixels
// as whole cache lines hold, if these are not more floats.
constexpr std::int64_t most_floats = 4096, line_floats = 16;

// A step whose operands are repeated for all pixels of a block, or a single one.
struct BlockStep {
  Operation operation;
  std::vector<float> operands;

  bool single() const { return operands.size() == 1; }
};

// Some channels of some pixels, which are counted over all lines.
struct Block {
  std::int64_t pixel = 0, pixels = 0, channel = 0, channels = 0;

  std::int64_t count() const { return pixels * channels; }
};

using FloatBuffer = float[most_floats];

bool uses_saved(Operation operation) {
  return operation == Operation::add_kept || operation == Operation::multiply_kept;
}

class ElementwiseStage final : public Stage {
 public:
  ElementwiseStage(const Elementwise& at, const FloatTensor& tensor, const FloatPlace& first,
                   const FloatOperand& second, const FloatPlace& to, const ElementLoops& loops)
      : loops_(loops),
        operation_(static_cast<Operation>(at.operation)),
        first_(first),
        to_(to),
        second_(second),
        width_(tensor.width) {
    name = Elementwise::name;
    lines = tensor.height;
    channels = tensor.channels;
    elements = tensor.elements();
    block_channels_ = std::min(channels, usual_floats);
    block_pixels_ = usual_floats / block_channels_;
    if (!to.channels_last() && block_pixels_ % line_floats != 0) {
      const std::int64_t most = most_floats / block_channels_;
      block_pixels_ = std::max(block_pixels_, most / line_floats * line_floats);
    }
    for (const Step& step : at.steps) {
      steps_.push_back({step.kind(), {step.operands.begin(), step.operands.end()}});
      keeps_ = keeps_ || uses_saved(step.kind());
      // Several pixels have all channels.
      std::vector<float>& all = steps_.back().operands;
      if (all.size() > 1)
        for (std::int64_t i = 1; i < block_pixels_; ++i)
          all.insert(all.end(), step.operands.begin(), step.operands.end());
    }
  }

  std::string kernel() const override { return "floats"; }
  std::int64_t bytes() const override {
    std::size_t size = 0;
    for (const BlockStep& step : steps_) size += step.operands.size() * sizeof(float);
    return static_cast<std::int64_t>(size);
  }

  void run(const Memory& memory, const Part& part) const override {
    const std::int64_t last = part.last_line * width_;
    for (std::int64_t row = part.first_row; row < part.last_row; ++row)
      for (std::int64_t c = 0; c < channels; c += block_channels_) {
        Block block{part.first_line * width_, 0, c, std::min(block_channels_, channels - c)};
        FloatBuffer repeated;
        const float* const operand = repeated_operand(memory, row, block, repeated);
        for (; block.pixel < last; block.pixel += block.pixels) {
          block.pixels = std::min(block_pixels_, last - block.pixel);
          compute(memory, row, block, operand);
        }
      }
  }

 private:
  // Repeats the channels of an operand of one pixel. Returns null for other operands.
  const float* repeated_operand(const Memory& memory, std::int64_t row, const Block& block,
                                FloatBuffer& buffer) const {
    if (!second_.one_pixel) return nullptr;
    const float* const from = second_.place.read(memory, row);
    if (second_.one_channel) return from;
    for (std::int64_t p = 0; p < block_pixels_; ++p)
      std::copy_n(from + block.channel, block.channels, buffer + p * block.channels);
    return buffer;
  }

  // Returns the numbers of a block, channels last.
  const float* fetch(const FloatPlace& from, const Memory& memory, std::int64_t row,
                     const Block& block, FloatBuffer& buffer) const {
    const float* const x = from.read(memory, row) + block.pixel * from.strides.pixel +
                           block.channel * from.strides.channel;
    if (from.channels_last()) return x;
    transpose_floats(x, from.strides.channel, block.channels, block.pixels, buffer, block.channels);
    return buffer;
  }

  // Repeats the only channel of an operand over all channels.
  const float* spread(const Memory& memory, std::int64_t row, const Block& block,
                      FloatBuffer& buffer) const {
    const FloatPlace& from = second_.place;
    const float* const x = from.read(memory, row) + block.pixel * from.strides.pixel;
    for (std::int64_t p = 0; p < block.pixels; ++p)
      std::fill_n(buffer + p * block.channels, block.channels, x[p * from.strides.pixel]);
    return buffer;
  }

  void compute(const Memory& memory, std::int64_t row, const Block& block,
               const float* operand) const {
    FloatBuffer first_buffer, second_buffer, result_buffer;
    const float* x = fetch(first_, memory, row, block, first_buffer);
    float* const to = to_.channels_last()
                          ? to_.write(memory, row) + block.pixel * to_.strides.pixel + block.channel
                          : result_buffer;
    if (second_.is_present) {
      const bool single = second_.one_pixel && second_.one_channel;
      if (operand == nullptr)
        operand = second_.one_channel ? spread(memory, row, block, second_buffer)
                                      : fetch(second_.place, memory, row, block, second_buffer);
      loops_.arithmetic(operation_, x, operand, single, block.count(), to);
      x = to;
    }
    apply_steps(block, x, to);
    if (to_.channels_last()) return;
    float* const y = to_.write(memory, row) + block.channel * to_.strides.channel + block.pixel;
    transpose_floats(to, block.channels, block.pixels, block.channels, y, to_.strides.channel);
  }

  void apply_steps(const Block& block, const float* x, float* to) const {
    FloatBuffer kept;
    if (keeps_) std::fill_n(kept, block.count(), 0.0f);
    else if (steps_.empty() && x != to) std::copy_n(x, block.count(), to);
    for (const BlockStep& step : steps_) {
      if (step.operation == Operation::keep) {
        std::copy_n(x, block.count(), kept);
        continue;
      }
      if (uses_saved(step.operation)) {
        const bool adds = step.operation == Operation::add_kept;
        loops_.arithmetic(adds ? Operation::add : Operation::multiply, x, kept, false,
                          block.count(), to);
      } else {
        const float* const c = step.operands.data() + (step.single() ? 0 : block.channel);
        loops_.arithmetic(step.operation, x, c, step.single(), block.count(), to);
      }
      x = to;
    }
    if (x != to) std::copy_n(x, block.count(), to);
  }

  const ElementLoops& loops_;
  const Operation operation_;
  const FloatPlace first_, to_;
  const FloatOperand second_;
  const std::int64_t width_;
  std::int64_t block_channels_ = 1, block_pixels_ = 1;
  std::vector<BlockStep> steps_;
  bool keeps_ = false;
};

}  // namespace

std::unique_ptr<Stage> make_stage(const Elementwise& at, const FloatTensor& tensor,
                                  const FloatPlace& first, const FloatOperand& second,
                                  const FloatPlace& target, const ElementLoops& loops) {
  return std::make_unique<ElementwiseStage>(at, tensor, first, second, target, loops);
}

}  // namespace anybit::lowbit
